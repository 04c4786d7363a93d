"""API for packages of tasks or engines. No other module of Stoker is stable.

The gateway imports modules of records. Through this module they load neither torch nor numpy.
"""

from typing import TYPE_CHECKING, Any

from stoker.base.strict_json import Strict
from stoker.models.engines.interface import Engine, Progress
from stoker.models.engines.record import EngineRecord, Narrower, Needs, Options, OwnPython
from stoker.models.llm.engines.interface import LanguageEngine
from stoker.models.llm.interface import LanguageModel
from stoker.models.llm.runner import Chunk, Runner
from stoker.models.stages.base import InputError, Sample, Stages, Steps, StreamWriter, by_kind
from stoker.models.stages.kinds import ModelKind
from stoker.models.stages.pipelines import (
    AudioPipelineStages,
    AudioStages,
    ImagePipelineStages,
    ImageStages,
    PipelineStages,
    TextPipelineStages,
    VideoStages,
)
from stoker.models.stages.text import TextStages
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.models.tasks.base import (
    LanguagePipeline,
    MediaPipeline,
    MediaRequest,
    NestedRequest,
    Task,
    TaskRequest,
)
from stoker.models.tasks.inputs import (
    MANY,
    ONE,
    AudioInputs,
    CandidateLabels,
    FunctionToApply,
    HypothesisTemplate,
    ImageInputs,
    Label,
    TextInputs,
    TopK,
    Truncation,
    VideoInputs,
    one_or_many,
)
from stoker.wire.protocol import Execution, ReplicaSpec

if TYPE_CHECKING:
    from stoker.models.llm.scheduler import Scheduler

__all__ = [
    "MANY",
    "ONE",
    "UNWATCHED",
    "AudioInputs",
    "AudioPipelineStages",
    "AudioStages",
    "CandidateLabels",
    "Chunk",
    "Engine",
    "EngineRecord",
    "Execution",
    "FunctionToApply",
    "HypothesisTemplate",
    "ImageInputs",
    "ImagePipelineStages",
    "ImageStages",
    "InputError",
    "Label",
    "LanguageEngine",
    "LanguageModel",
    "LanguagePipeline",
    "MediaPipeline",
    "MediaRequest",
    "ModelKind",
    "Narrower",
    "Needs",
    "NestedRequest",
    "Options",
    "OwnPython",
    "PipelineStages",
    "Progress",
    "ReplicaSpec",
    "Runner",
    "Sample",
    "Scheduler",
    "Stages",
    "Steps",
    "StreamWriter",
    "Strict",
    "Task",
    "TaskRequest",
    "TextInputs",
    "TextPipelineStages",
    "TextStages",
    "TopK",
    "Truncation",
    "VideoInputs",
    "VideoStages",
    "Watch",
    "by_kind",
    "one_or_many",
]


def __getattr__(name: str) -> Any:
    if name == "Scheduler":
        # Imported here because it loads torch, which the gateway does not need.
        from stoker.models.llm.scheduler import Scheduler

        return Scheduler
    raise AttributeError(f"stoker.plugin_api has no '{name}'; it has {', '.join(__all__)}.")
