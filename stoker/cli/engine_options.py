"""Options of commands that choose how an engine computes a model."""

from typing import Annotated, Any

import typer

from stoker.cli.call import parsed_parameters
from stoker.client.client import JsonObject

Engine = Annotated[str | None, typer.Option(help="Engine, such as torch.")]
Device = Annotated[str | None, typer.Option(help="Device, such as cpu.")]
Dtype = Annotated[str | None, typer.Option(help="Compute precision, such as float32.")]
WeightFormat = Annotated[
    str | None,
    typer.Option(help="Weight format on a CPU: int8, or int4 for language models."),
]
Devices = Annotated[
    int | None, typer.Option(help="GPUs per replica on vLLM, which share the model.")
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Engine option, such as weight_format=int8. Repeatable."
    ),
]


def given(**fields: Any) -> JsonObject:
    """Returns the fields with a value."""
    return {name: value for name, value in fields.items() if value is not None}


def engine_config(options: list[str] | None, **short_forms: Any) -> JsonObject | None:
    """Returns the engine's options. Returns None if there are none."""
    return (parsed_parameters(options or []) | given(**short_forms)) or None
