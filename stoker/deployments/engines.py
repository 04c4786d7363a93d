"""Whether an engine can serve what a deployment asks of it: the catalogue's records decide."""

from importlib.util import find_spec

from stoker.config import Settings
from stoker.engines import environments
from stoker.engines.catalogue import ENGINES
from stoker.engines.record import AUTO, EngineRecord, Options
from stoker.errors import InvalidRequestError
from stoker.store.tables.deployments import Deployment
from stoker.tasks.registry import SERVED, Pipeline, engines

_PLACES = {"cpu": "the CPU", "cuda": "a GPU"}


def check(settings: Settings, row: Deployment) -> None:
    """Raise `InvalidRequestError` where the row's engine, device, dtype and options do not fit."""
    pipeline = SERVED.get(row.pipeline)
    if pipeline is None:
        raise InvalidRequestError(
            f"Nothing on this server serves '{row.pipeline}' any more.", param="pipeline"
        )
    served = engines(row.pipeline)
    if row.engine != AUTO:
        record = ENGINES.get(row.engine)
        if record is None or row.engine not in served:
            raise _unserved(row, record, " and ".join(served))
        if not _takes(record, pipeline, row):
            raise _elsewhere(record, pipeline, row)
        if record.environment and environments.installed(settings, record.name) is None:
            raise InvalidRequestError(environments.missing(record.name), param="engine")
    for record in ENGINES.values():
        for option in _given(record, row):
            _check_option(option, record, pipeline, row)


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
    others = (ENGINES[name] for name in engines(row.pipeline) if name != record.name)
    other = next((one.name for one in others if _takes(one, pipeline, row)), None)
    choice = f", or choose '{other}'" if other else ""
    places = " or ".join(_PLACES[device] for device in record.devices)
    return InvalidRequestError(
        f"The engine '{record.name}' runs on {places}, in "
        f"{' or '.join(record.serves[pipeline.kind])}: leave out 'device' and 'dtype'"
        f"{choice}.",
        param="engine",
    )


def _given(record: EngineRecord, row: Deployment) -> list[str]:
    """The engine's options that the row has."""
    names = record.options.model.model_fields if record.options else ()
    return [name for name in names if row.config.get(name) is not None]


def _check_option(option: str, record: EngineRecord, pipeline: Pipeline, row: Deployment) -> None:
    options = record.options
    if options is None:
        return
    if options.kind is not pipeline.kind or not _reaches(record, pipeline, row):
        raise _misplaced(option, options, record)
    if options.needs and find_spec(options.needs.module) is None:
        raise InvalidRequestError(
            f"'{option}' needs {options.needs.title} on the server: {options.needs.install}.",
            param=f"config.{option}",
        )


def _reaches(record: EngineRecord, pipeline: Pipeline, row: Deployment) -> bool:
    """Whether the row's model comes to run on this engine."""
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
