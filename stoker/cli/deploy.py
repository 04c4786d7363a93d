"""`stoker deploy` and `stoker deployments set`: what a deployment is to be."""

from typing import Annotated, Any

import typer

from stoker.cli import output
from stoker.cli.artifacts import AdapterOf, Gguf, TokenVariable
from stoker.cli.call import parsed_parameters
from stoker.cli.context import client
from stoker.cli.deployments import DETAILS, Readiness, Which, app, create, path_of, settled
from stoker.cli.imports import SCHEME, Reference, import_new, token_from
from stoker.cli.output import AsJson
from stoker.cli.versions import changed
from stoker.client.client import JsonObject, Request
from stoker.client.errors import WrongUseError

READINESS = "cold: starts when called; warm: stays while memory allows; hot: always."

Engine = Annotated[str | None, typer.Option(help="The engine, as in torch.")]
Device = Annotated[str | None, typer.Option(help="The device, as in cpu.")]
Dtype = Annotated[str | None, typer.Option(help="Numbers to compute in, as in float32.")]
WeightFormat = Annotated[
    str | None,
    typer.Option(help="Keep the weights in int8, a language model's also in int4, on a CPU."),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="An option of the engine, as in weight_format=int8; repeatable."
    ),
]
MinReplicas = Annotated[int | None, typer.Option(help="Replicas kept at least.")]
MaxReplicas = Annotated[int | None, typer.Option(help="Replicas started at most.")]
Keep = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="How long a version that is live no more stays loaded, uncalled."
    ),
]
IdleTimeout = Annotated[
    float | None,
    typer.Option(
        "--idle-timeout",
        "--idle-timeout-s",
        metavar="SECONDS",
        help="Time without a call until a cold model is unloaded.",
    ),
]
MaxQueue = Annotated[int | None, typer.Option(help="Requests that may wait; more are refused.")]
Wait = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait", help="Wait until a warm or hot one has loaded; the default for them."
    ),
]


def deploy(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_ID",
            help="The name callers will use; or hf:org/name@revision, with --as, of a model that "
            "is imported first.",
        ),
    ],
    artifact: Annotated[
        str | None,
        typer.Argument(metavar="ARTIFACT", help="The artifact's id (art_…); or give --source."),
    ] = None,
    *,
    model_id: Annotated[
        str | None,
        typer.Option("--as", metavar="MODEL_ID", help="What to call a model from a hub."),
    ] = None,
    gguf: Gguf = None,
    token_variable: TokenVariable = None,
    source: Annotated[
        str | None, typer.Option(help="A folder on the server, below one that its operator named.")
    ] = None,
    adapter_of: AdapterOf = None,
    readiness: Annotated[
        Readiness | None, typer.Option(help=f"{READINESS} The default is cold.")
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(help="The task; the artifact's by default.")
    ] = None,
    engine: Engine = None,
    device: Device = None,
    dtype: Dtype = None,
    weight_format: WeightFormat = None,
    config: Config = None,
    min_replicas: MinReplicas = None,
    max_replicas: MaxReplicas = None,
    idle_timeout: IdleTimeout = None,
    keep: Keep = None,
    max_queue: MaxQueue = None,
    wait: Wait = None,
    as_json: AsJson = False,
) -> None:
    """Deploy an artifact, or a model from a hub, so that it can be called by its model id."""
    server = client(ctx)
    if model.startswith(SCHEME):
        if artifact or source:
            raise WrongUseError("A model from a hub is its own artifact: name no other.")
        reference, token = Reference.parse(model), token_from(token_variable)
        found = import_new(server, reference, pipeline=pipeline, token=token, gguf=gguf)
        artifact = found["id"]
        model = model_id or reference.name
    elif model_id or gguf or token_variable:
        raise WrongUseError("--as, --gguf and --token-from are for models from a hub (hf:…).")
    if (artifact is None) == (source is None):
        raise WrongUseError("Give either an artifact's id or --source.")
    given = _given(
        model=model,
        artifact_id=artifact,
        source=source,
        adapter_of=adapter_of,
        pipeline=pipeline,
        readiness=readiness,
        engine=engine,
        device=device,
        dtype=dtype,
        replicas=_given(min=min_replicas, max=max_replicas) or None,
        idle_timeout_s=idle_timeout,
        keep_s=keep,
        max_queue=max_queue,
        config=_config(config, weight_format),
    )
    is_waiting = readiness in ("warm", "hot") if wait is None else wait
    deployment = create(server, given, wait=is_waiting)
    output.show_object(deployment, DETAILS, as_json=as_json)


@app.command("set")
def set_deployment(
    ctx: typer.Context,
    which: Which,
    *,
    readiness: Annotated[Readiness | None, typer.Option(help=READINESS)] = None,
    engine: Engine = None,
    device: Device = None,
    dtype: Dtype = None,
    weight_format: WeightFormat = None,
    config: Config = None,
    min_replicas: MinReplicas = None,
    max_replicas: MaxReplicas = None,
    idle_timeout: IdleTimeout = None,
    keep: Keep = None,
    max_queue: MaxQueue = None,
    wait: Wait = None,
    as_json: AsJson = False,
) -> None:
    """Change a deployment: what is not named stays. It serves on meanwhile."""
    changes = _given(
        readiness=readiness,
        engine=engine,
        device=device,
        dtype=dtype,
        replicas=_given(min=min_replicas, max=max_replicas) or None,
        idle_timeout_s=idle_timeout,
        keep_s=keep,
        max_queue=max_queue,
        config=_config(config, weight_format),
    )
    if not changes:
        raise WrongUseError("There is nothing to change.", hint="Name what, as in --readiness hot.")
    server = client(ctx)
    path = path_of(server, which)
    if wait is False:
        deployment = server.json(Request(method="PATCH", path=path, json=changes))
    else:
        deployment = changed(server, path, changes)
    if wait or (wait is None and deployment["readiness"] != "cold"):
        deployment = settled(server, deployment)
    output.show_object(deployment, DETAILS, as_json=as_json)


def _given(**fields: Any) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}


def _config(options: list[str] | None, weight_format: str | None) -> JsonObject | None:
    found = parsed_parameters(options or [])
    if weight_format is not None:
        found["weight_format"] = weight_format
    return found or None
