"""Engines whose replicas end while they record a pass, as if they were installed next to Stoker.

A server finds them through its PYTHONPATH.
"""

from stoker.plugin_api import EngineRecord, ModelKind

FRAGILE = EngineRecord(
    name="fragile",
    title="Fragile",
    meaning="`fragile`: it records passes.",
    serves={ModelKind.PASSES: ("float32",)},
    pipelines=("text-classification",),
    devices=("cpu",),
    for_stages="fragile_engines:FragileEngine.of",
)

CUT = EngineRecord(
    name="cut",
    title="Cut",
    meaning="`cut`: it captures steps.",
    serves={ModelKind.TEXT: ("float32",)},
    for_language="fragile_engines:CutEngine",
)
