"""Loads a language model with the engine that its deployment names."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stoker.models.chat.prompts.prompts import Prompts
from stoker.models.chat.prompts.rendering import Renderer
from stoker.models.engines import catalogue
from stoker.models.engines.interface import Progress
from stoker.models.engines.recording_guard import RecordingGuard
from stoker.models.llm.checkpoint import load_tokenizer
from stoker.models.llm.engines.interface import Guarded, LanguageEngine
from stoker.models.llm.scheduler import Scheduler
from stoker.models.stages.kinds import ModelKind
from stoker.models.tasks.registry import SERVED
from stoker.replica.language_worker import LanguageWorker
from stoker.replica.passes import Passes
from stoker.wire.flight import FlightRecord
from stoker.wire.notices import Notice
from stoker.wire.protocol import ReplicaSpec, Send


def load_language_model(
    spec: ReplicaSpec, send: Send, flight: FlightRecord, passes: Passes, progress: Progress
) -> LanguageWorker:
    """Returns the worker of a language model. Passes on all errors of the libraries."""
    kind = SERVED[spec.pipeline].kind
    record = catalogue.chosen(spec.engine, spec.pipeline, kind)
    folder = Path(spec.model_dir)
    # Created before any thread or large object exists.
    renderer = Renderer()
    # Reading weights and compiling release the GIL.
    with ThreadPoolExecutor(max_workers=1) as beside:
        tokenizer = beside.submit(load_tokenizer, folder)
        engine: LanguageEngine = catalogue.loaded(record.for_language)(spec, progress)
    prompts = Prompts(
        folder,
        max_length=engine.max_length,
        vocabulary=engine.vocabulary,
        images=spec.limits if kind is ModelKind.VISION else None,
        tokenizer=tokenizer.result(),
        renderer=renderer,
    )
    if isinstance(engine, Guarded):
        engine.guard(RecordingGuard(flight.note_recording, spec.lost_recordings))
    model = engine.begin(prompts.defaults.ends)
    prepare = engine.prepare if engine.convertible else None
    # Engines of other packages may not have adapters.
    adapters = getattr(engine, "adapters", None)
    worker = LanguageWorker(model, prompts, send, flight, prepare, passes=passes, adapters=adapters)
    worker.sharing = engine.sharing
    worker.device = str(getattr(engine, "device", ""))
    defaults = prompts.defaults
    # Engines with their own loop ignore the rules.
    unruled = () if isinstance(model, Scheduler) else defaults.unruled
    # Only some engines have notices.
    engine_notices: Sequence[Notice] = getattr(engine, "notices", ())
    worker.notices = [
        *spec.notices,
        *engine_notices,
        *defaults.notices,
        *unruled,
        *prompts.dialect.notices,
    ]
    return worker
