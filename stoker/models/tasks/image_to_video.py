"""Image to video: the continuation of an image, as a prompt describes it."""

from stoker.models.diffusion.video.video_stages import ImageToVideoStages, finish
from stoker.models.stages.kinds import ModelKind
from stoker.models.tasks.base import MediaPipeline

PIPELINE = MediaPipeline(
    name="image-to-video",
    paths=("/v1/videos",),
    architectures=ImageToVideoStages.classes,
    families=("wan", "ltx", "cogvideox"),
    kind=ModelKind.DRAWING,
    stages=ImageToVideoStages,
    input_field="prompt",
    finish=finish,
)
