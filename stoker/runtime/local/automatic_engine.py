"""Chooses vLLM for language models with `engine: auto` that run on a GPU, if it is installed."""

from dataclasses import replace

from stoker.base.config import Settings
from stoker.models.engines import environments
from stoker.models.engines.catalogue import ENGINES
from stoker.models.engines.record import AUTO, EngineRecord
from stoker.models.tasks.registry import SERVED
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.notices import Notice


class AutomaticEngine:
    """Prefers engines with a separate environment on a GPU, because they are faster there."""

    def __init__(self, settings: Settings, *, has_devices: bool) -> None:
        self._settings = settings
        self._has_devices = has_devices
        self._unfit: set[str] = set()
        """Sources of models that the preferred engine could not load."""

    def on_device(self, spec: DeploymentSpec) -> DeploymentSpec:
        """Returns the specification with the engine that runs it on a GPU."""
        record = self._preferred(spec)
        if record is None or environments.installed(self._settings, record.name) is None:
            return spec
        return replace(spec, engine=record.name)

    def could_not_load(self, spec: DeploymentSpec) -> None:
        """Records that the next replicas of the model need another engine."""
        self._unfit.add(spec.source)

    def forget(self, source: str) -> None:
        self._unfit.discard(source)

    def notices(self, spec: DeploymentSpec) -> list[Notice]:
        """Returns a hint if a model runs on a GPU without the preferred engine, because that is not
        installed.
        """
        record = self._preferred(spec)
        if record is None or environments.installed(self._settings, record.name):
            return []
        message = (
            f"The model runs on a GPU without {record.title}, which is faster there. The server's "
            f"operator can run 'stoker engines install {record.name}'."
        )
        return [Notice("engine_not_installed", message)]

    def _preferred(self, spec: DeploymentSpec) -> EngineRecord | None:
        """Returns the preferred engine on a GPU. None if the deployment's own engine stays."""
        if not self._has_devices or spec.engine != AUTO or spec.device == "cpu":
            return None
        # The engines' limits for adapters differ, and these adapters were accepted for torch.
        if spec.pipeline not in SERVED or spec.has_adapters or spec.source in self._unfit:
            return None
        options = {name for name, value in spec.config.items() if value is not None}
        kind = SERVED[spec.pipeline].kind
        for record in ENGINES.values():
            is_able = record.environment and "cuda" in record.devices
            accepted = record.options.model.model_fields if record.options else ()
            if (
                is_able
                and record.runs(spec.pipeline, kind)
                and spec.dtype in (AUTO, *record.serves[kind])
                and options <= set(accepted)
            ):
                return record
        return None
