"""An engine that sleeps, so that only the costs around a model remain.

The folder has the layout of a package in site-packages. A server finds it through PYTHONPATH.
"""

from stoker.models.engines.record import EngineRecord
from stoker.models.stages.kinds import ModelKind

SLEEPER = EngineRecord(
    name="sleeper",
    title="Sleeper",
    meaning="`sleeper`: it sleeps.",
    serves={ModelKind.PASSES: ("float32",)},
    pipelines=("token-classification",),
    devices=("cpu",),
    for_stages="sleeper_engine:SleepingEngine",
    probe="import numpy; print(numpy.__version__)",
)
