"""Checks whether an engine can serve a deployment's configuration, based on the engine catalogue's
records.
"""

from collections.abc import Sequence
from importlib.util import find_spec

from stoker.base.config import Settings
from stoker.base.errors import InvalidRequestError
from stoker.models.engines import environments
from stoker.models.engines.catalogue import ENGINES, not_installed, served_dtypes
from stoker.models.engines.record import AUTO, DTYPES, INT8, TF32, EngineRecord, Needs, Options
from stoker.models.stages.kinds import LANGUAGE, ModelKind
from stoker.models.tasks.registry import SERVED, Pipeline, engines
from stoker.store.tables.deployments import Deployment

_PLACES = {"cpu": "the CPU", "cuda": "a GPU"}


def check(settings: Settings, row: Deployment) -> None:
    """Raises `InvalidRequestError` if the row's engine, device, dtype and options do not fit."""
    pipeline = SERVED.get(row.pipeline)
    if pipeline is None:
        raise InvalidRequestError(
            f"This server no longer serves '{row.pipeline}'.", param="pipeline"
        )
    served = engines(row.pipeline)
    _check_installed(pipeline, row)
    _check_served(pipeline, row)
    if row.engine != AUTO:
        record = ENGINES.get(row.engine)
        if record is None or row.engine not in served:
            raise _unserved(row, record, " and ".join(served))
        if not _takes(record, pipeline, row):
            raise _elsewhere(record, pipeline, row)
        if record.environment and environments.installed(settings, record.name) is None:
            raise InvalidRequestError(environments.missing(record.name), param="engine")
    _check_dtype(pipeline, row)
    for record in ENGINES.values():
        for option in _given(record, row):
            _check_option(option, record, pipeline, row)
    for record in ENGINES.values():
        for option in record.generation.model_fields if record.generation else ():
            if row.config.get(option) is not None:
                _check_generation(option, pipeline, row)


def _check_installed(pipeline: Pipeline, row: Deployment) -> None:
    """Raises `InvalidRequestError` if the row needs an engine whose package is not installed."""
    served = served_dtypes(row.pipeline, pipeline.kind)
    for record in ENGINES.values():
        if record.package is None or not record.is_missing:
            continue
        if not record.runs(row.pipeline, pipeline.kind):
            continue
        params = {
            "engine": record.name == row.engine or not served,
            "dtype": row.dtype not in (AUTO, *served) and row.dtype in record.serves[pipeline.kind],
            **{f"config.{option}": True for option in _given(record, row)},
        }
        if param := next((name for name, is_needed in params.items() if is_needed), None):
            raise InvalidRequestError(not_installed(record.name, record.package), param=param)


def check_loadable(loaders: Sequence[str], row: Deployment) -> None:
    """Raises `InvalidRequestError` if only another engine can load the model's weights.

    Args:
        loaders: engines that can load the model, by its inspection.
    """
    apart = [name for name in loaders if name in environments.NAMES]
    if apart and len(apart) == len(loaders) and row.engine not in apart:
        raise InvalidRequestError(
            "The model's weights are quantized in a way that only "
            f"{ENGINES[apart[0]].title} loads: choose the engine '{apart[0]}'.",
            param="engine",
        )


def _check_served(pipeline: Pipeline, row: Deployment) -> None:
    """Raises `InvalidRequestError` if no engine computes such models in the row's dtype."""
    served = (ENGINES[name].serves[pipeline.kind] for name in engines(row.pipeline))
    if row.dtype == AUTO or any(row.dtype in dtypes for dtypes in served):
        return
    instead = (
        " To keep the weights in eight bits, set 'weight_format' to 'int8' in 'config'."
        if pipeline.kind is ModelKind.TEXT
        else ""
    )
    raise InvalidRequestError(
        f"'{row.pipeline}' does not support the dtype {row.dtype}. Leave out "
        f"'dtype', or use one of {', '.join(DTYPES)}.{instead}",
        param="dtype",
    )


def _check_dtype(pipeline: Pipeline, row: Deployment) -> None:
    """Raises `InvalidRequestError` if the row's dtype needs a GPU, or a conversion, and the model
    would not get it.
    """
    if row.dtype == TF32 and row.device == "cpu":
        raise InvalidRequestError(
            "Only GPUs compute in 'tf32'. Use 'float32', or another 'device'.", param="dtype"
        )
    if row.dtype in (AUTO, TF32, *DTYPES):
        return
    able = [ENGINES[name] for name in engines(row.pipeline)]
    able = [engine for engine in able if row.dtype in engine.serves[pipeline.kind]]
    record = next((engine for engine in able if _reaches(engine, pipeline, row)), None)
    if record is None:
        titles = " or ".join(engine.title for engine in able)
        raise InvalidRequestError(
            f"'{row.dtype}' is supported only on {titles}, not on a GPU. Leave out "
            "'device', or use another 'dtype'.",
            param="dtype",
        )
    if needs := record.dtype_needs.get(row.dtype):
        _check_there(needs, f"'{row.dtype}'", "dtype")
    if row.dtype == INT8 and row.config.get("weight_format"):
        raise InvalidRequestError(
            "With 'dtype' 'int8' the weights have eight bits already: leave out 'weight_format'.",
            param="config.weight_format",
        )


def _unserved(row: Deployment, record: EngineRecord | None, served: str) -> InvalidRequestError:
    if record and record.purpose:
        message = f"The engine '{row.engine}' {record.purpose} and does not serve '{row.pipeline}'."
    else:
        message = (
            f"The engine '{row.engine}' does not serve '{row.pipeline}', which runs on "
            f"{served}: leave out 'engine'."
        )
    return InvalidRequestError(message, param="engine")


def _takes(record: EngineRecord, pipeline: Pipeline, row: Deployment) -> bool:
    device, _, _ = row.device.partition(":")
    dtypes = (AUTO, *record.serves[pipeline.kind])
    return device in (AUTO, *record.devices) and row.dtype in dtypes


def _elsewhere(record: EngineRecord, pipeline: Pipeline, row: Deployment) -> InvalidRequestError:
    other_engines = (ENGINES[name] for name in engines(row.pipeline) if name != record.name)
    other = next((engine.name for engine in other_engines if _takes(engine, pipeline, row)), None)
    choice = f", or choose '{other}'" if other else ""
    places = " or ".join(_PLACES[device] for device in record.devices)
    return InvalidRequestError(
        f"The engine '{record.name}' runs on {places}, in "
        f"{' or '.join(record.serves[pipeline.kind])}: leave out 'device' and 'dtype'"
        f"{choice}.",
        param="engine",
    )


def _given(record: EngineRecord, row: Deployment) -> list[str]:
    """Returns the engine's options that the row sets."""
    names = record.options.model.model_fields if record.options else ()
    return [name for name in names if row.config.get(name) is not None]


def _check_option(option: str, record: EngineRecord, pipeline: Pipeline, row: Deployment) -> None:
    options = record.options
    if options is None:
        return
    if pipeline.kind not in options.kinds or not _reaches(record, pipeline, row):
        raise _misplaced(option, options, record)
    device, _, index = row.device.partition(":")
    if device not in (AUTO, *options.devices):
        places = " or ".join(_PLACES[place] for place in options.devices)
        raise InvalidRequestError(
            f"'{option}' needs {places}: leave it out, or leave out 'device'.",
            param=f"config.{option}",
        )
    value = row.config[option]
    if option == record.devices_option and index and value > 1:
        raise InvalidRequestError(
            f"'{option}' is {value}, but 'device' names a single GPU: use 'cuda', or leave out "
            "'device'.",
            param=f"config.{option}",
        )
    if narrower := options.narrowed(option, value, pipeline.kind):
        raise InvalidRequestError(
            f"'{option}' cannot be '{value}' for '{row.pipeline}': choose '{narrower.instead}', "
            "or leave it out.",
            param=f"config.{option}",
        )
    if options.needs:
        _check_there(options.needs, f"'{option}'", f"config.{option}")


def _check_there(needs: Needs, what: str, param: str) -> None:
    if find_spec(needs.module) is None:
        raise InvalidRequestError(
            f"{what} needs {needs.title}, which is not installed on the server. There, 'stoker "
            "doctor' shows the command that installs it.",
            param=param,
        )


def _check_generation(option: str, pipeline: Pipeline, row: Deployment) -> None:
    """Raises `InvalidRequestError` if the row's model does not generate text, or its engine does
    not support the option.
    """
    takers = [
        engine.name
        for engine in ENGINES.values()
        if engine.generation and option in engine.generation.model_fields
    ]
    named = engines(row.pipeline) if row.engine == AUTO else [row.engine]
    if pipeline.kind in LANGUAGE and any(name in takers for name in named):
        return
    titles = " and ".join(ENGINES[name].title for name in takers)
    choice = " or choose another 'engine'" if pipeline.kind in LANGUAGE else ""
    raise InvalidRequestError(
        f"'{option}' is for language models on {titles}: leave it out{choice}.",
        param=f"config.{option}",
    )


def _reaches(record: EngineRecord, pipeline: Pipeline, row: Deployment) -> bool:
    """Returns True if the row's model would run on this engine."""
    if not record.runs(row.pipeline, pipeline.kind):
        return False
    device, _, _ = row.device.partition(":")
    automatic = record.converts or engines(row.pipeline)[0] == record.name
    named = row.engine == record.name or (row.engine == AUTO and automatic)
    return named and device in (AUTO, *record.devices)


def _misplaced(option: str, options: Options, record: EngineRecord) -> InvalidRequestError:
    where = "" if "cuda" in record.devices else " and no 'device'"
    return InvalidRequestError(
        f"'{option}' is for {options.purpose} on {record.title}: leave it out, or choose the "
        f"engine '{record.name}'{where}.",
        param=f"config.{option}",
    )
