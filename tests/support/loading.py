"""What a replica does with a model that it loads for the first time."""

from pathlib import Path

from stoker.models.engines import sharing
from stoker.models.engines.torch import TorchEngine
from stoker.models.tasks.registry import STAGES
from stoker.wire.protocol import Sharing


def shared(pipeline: str, folder: Path) -> Sharing:
    """What may share a batch, once probes of the model were run. Raises what the load raises."""
    stages = STAGES[pipeline](folder)
    engine = TorchEngine("cpu", "float32", threads=1)
    stages.attach(engine.load(folder, stages, lambda *_: None))
    return sharing.find(engine, stages)
