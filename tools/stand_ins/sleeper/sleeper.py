"""An engine that sleeps: what is left is what surrounds a model, however many of it there are.

The folder is what a package leaves in site-packages; a server finds it by its PYTHONPATH.
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
