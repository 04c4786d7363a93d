"""Engines whose replicas end while they record a pass, as if they were installed next to Stoker.

`killed` and `cut` are killed. `lost` loses its device. A server finds them through its PYTHONPATH.
"""

from stoker.plugin_api import EngineRecord, ModelKind


def _record(name: str) -> EngineRecord:
    return EngineRecord(
        name=name,
        title=name.capitalize(),
        meaning=f"`{name}`: fragile.",
        serves={ModelKind.PASSES: ("float32",)},
        pipelines=("text-classification",),
        devices=("cpu",),
        for_stages=f"fragile_engines:{name.capitalize()}Engine.of",
    )


KILLED, LOST = _record("killed"), _record("lost")
CUT = EngineRecord(
    name="cut",
    title="Cut",
    meaning="`cut`: fragile.",
    serves={ModelKind.TEXT: ("float32",)},
    for_language="fragile_engines:CutEngine",
)
