"""Record of an engine that writes the answers of a script, as if it were installed next to Stoker.

The folder has the layout of an installed package in site-packages. A server finds it through its
PYTHONPATH.
"""

from pydantic import Field

from stoker.plugin_api import EngineRecord, ModelKind, Options, Strict


class ScriptStep(Strict):
    when: str = Field(
        description="Regular expression that the prompt must contain after the last answer."
    )
    aside: bool = Field(
        default=False,
        description="True: the step is outside of the order, for each prompt that contains `when`.",
    )
    say: str = Field(description="Answer, in the model's own format. `\\1` is the first group.")


class ScriptOptions(Strict):
    script: list[ScriptStep] | None = Field(
        default=None, description="The conversation's answers, in order."
    )


SCRIPT = EngineRecord(
    name="script",
    title="Script",
    meaning="`script`: it writes the answers of a script.",
    serves={ModelKind.TEXT: ("float32",)},
    devices=("cpu",),
    options=Options(model=ScriptOptions, kinds=[ModelKind.TEXT], purpose="text generation"),
    for_language="script_engine:ScriptEngine",
)
