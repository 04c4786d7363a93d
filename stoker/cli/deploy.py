"""`stoker deploy` and `stoker deployments update`: create and change deployments."""

from typing import Annotated

import typer

from stoker.cli import completion, output
from stoker.cli.artifact_ids import artifact_id
from stoker.cli.artifacts import AdapterOf, Gguf, TokenVariable
from stoker.cli.context import client
from stoker.cli.deployments import DETAILS, Readiness, Which, app, create, path_of, settled
from stoker.cli.engine_options import (
    Config,
    Device,
    Devices,
    Dtype,
    Engine,
    WeightFormat,
    engine_config,
    given,
)
from stoker.cli.imports import SCHEME, Reference, import_new, token_from
from stoker.cli.output import AsJson
from stoker.cli.versions import changed
from stoker.client.client import ApiRequest
from stoker.client.errors import WrongUseError

READINESS = "cold: loads when called. warm: stays loaded while memory allows. hot: always loaded."

MinReplicas = Annotated[int | None, typer.Option(help="Minimum number of replicas.")]
MaxReplicas = Annotated[int | None, typer.Option(help="Maximum number of replicas.")]
Keep = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="Seconds that a replaced version stays loaded without calls."
    ),
]
IdleTimeout = Annotated[
    float | None,
    typer.Option(
        "--idle-timeout",
        "--idle-timeout-s",
        metavar="SECONDS",
        help="Seconds without calls before a cold model is unloaded.",
    ),
]
MaxQueue = Annotated[
    int | None,
    typer.Option(help="Maximum number of queued requests. Further requests are rejected."),
]
Wait = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait", help="Wait until the model is loaded. Default for warm and hot models."
    ),
]


def deploy(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_ID",
            help="Model ID that callers use. With --as: hub model to import and deploy, as "
            "hf:org/name@revision.",
        ),
    ],
    artifact: Annotated[
        str | None,
        typer.Argument(
            metavar="ARTIFACT",
            help="Artifact ID (art_…) or name, unless --source is given.",
            autocompletion=completion.artifacts,
        ),
    ] = None,
    *,
    model_id: Annotated[
        str | None,
        typer.Option("--as", metavar="MODEL_ID", help="Model ID for a model imported from a hub."),
    ] = None,
    gguf: Gguf = None,
    token_variable: TokenVariable = None,
    source: Annotated[
        str | None,
        typer.Option(help="Model folder on the server, below a folder that the operator allows."),
    ] = None,
    adapter_of: AdapterOf = None,
    readiness: Annotated[Readiness | None, typer.Option(help=f"{READINESS} Default: cold.")] = None,
    pipeline: Annotated[
        str | None, typer.Option(help="Task. Default: the artifact's task.")
    ] = None,
    engine: Engine = None,
    device: Device = None,
    dtype: Dtype = None,
    weight_format: WeightFormat = None,
    devices: Devices = None,
    config: Config = None,
    min_replicas: MinReplicas = None,
    max_replicas: MaxReplicas = None,
    idle_timeout: IdleTimeout = None,
    keep: Keep = None,
    max_queue: MaxQueue = None,
    wait: Wait = None,
    as_json: AsJson = False,
) -> None:
    """Deploy an artifact or a hub model under a model ID."""
    server = client(ctx)
    if model.startswith(SCHEME):
        if artifact or source:
            raise WrongUseError("A hub model cannot be combined with an artifact or --source.")
        reference, token = Reference.parse(model), token_from(token_variable)
        imported_artifact = import_new(server, reference, pipeline=pipeline, token=token, gguf=gguf)
        artifact = str(imported_artifact["id"])
        model = model_id or reference.name
    elif model_id or gguf or token_variable:
        raise WrongUseError("--as, --gguf and --token-from require a hub model (hf:…).")
    if (artifact is None) == (source is None):
        raise WrongUseError("Give either an artifact or --source.")
    fields = given(
        model=model,
        artifact_id=artifact and artifact_id(server, artifact),
        source=source,
        adapter_of=adapter_of,
        pipeline=pipeline,
        readiness=readiness,
        engine=engine,
        device=device,
        dtype=dtype,
        replicas=given(min=min_replicas, max=max_replicas) or None,
        idle_timeout_s=idle_timeout,
        keep_s=keep,
        max_queue=max_queue,
        config=engine_config(config, weight_format=weight_format, devices=devices),
    )
    is_waiting = readiness in ("warm", "hot") if wait is None else wait
    deployment = create(server, fields, wait=is_waiting)
    output.show_object(deployment, DETAILS, as_json=as_json)


@app.command()
def update(
    ctx: typer.Context,
    which: Which,
    *,
    readiness: Annotated[Readiness | None, typer.Option(help=READINESS)] = None,
    engine: Engine = None,
    device: Device = None,
    dtype: Dtype = None,
    weight_format: WeightFormat = None,
    devices: Devices = None,
    config: Config = None,
    min_replicas: MinReplicas = None,
    max_replicas: MaxReplicas = None,
    idle_timeout: IdleTimeout = None,
    keep: Keep = None,
    max_queue: MaxQueue = None,
    wait: Wait = None,
    as_json: AsJson = False,
) -> None:
    """Change a deployment. Omitted options stay unchanged. Calls continue meanwhile."""
    changes = given(
        readiness=readiness,
        engine=engine,
        device=device,
        dtype=dtype,
        replicas=given(min=min_replicas, max=max_replicas) or None,
        idle_timeout_s=idle_timeout,
        keep_s=keep,
        max_queue=max_queue,
        config=engine_config(config, weight_format=weight_format, devices=devices),
    )
    if not changes:
        raise WrongUseError("Nothing to change.", hint="Give an option, such as --readiness hot.")
    server = client(ctx)
    path = path_of(server, which)
    if wait is False:
        deployment = server.json(ApiRequest(method="PATCH", path=path, json=changes))
    else:
        deployment = changed(server, path, changes)
    if wait or (wait is None and deployment["readiness"] != "cold"):
        deployment = settled(server, deployment)
    output.show_object(deployment, DETAILS, as_json=as_json)


app.command("set", hidden=True)(update)
