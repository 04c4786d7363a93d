"""Runs a replica's steps for a model that it loads for the first time."""

from pathlib import Path

from stoker.models.engines import sharing
from stoker.models.engines.torch import TorchEngine
from stoker.models.tasks.registry import STAGES
from stoker.wire.protocol import Sharing


def shared(pipeline: str, folder: Path) -> Sharing:
    """Loads a model, probes it and returns which inputs may share a batch. Raises the errors of the
    load.
    """
    stages = STAGES[pipeline](folder)
    engine = TorchEngine("cpu", "float32", threads=1)
    stages.attach(engine.load(folder, stages, lambda *_: None))
    return sharing.find(engine, stages)
