"""Text to video: frames from a prompt."""

from stoker.models.diffusion.video.video_stages import TextToVideoStages, finish
from stoker.models.stages.kinds import ModelKind
from stoker.models.tasks.base import MediaPipeline

PIPELINE = MediaPipeline(
    name="text-to-video",
    paths=("/v1/videos",),
    architectures=TextToVideoStages.classes,
    families=("wan", "ltx", "cogvideox"),
    kind=ModelKind.DRAWING,
    stages=TextToVideoStages,
    input_field="prompt",
    finish=finish,
)
