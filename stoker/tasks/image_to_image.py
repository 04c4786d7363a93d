"""Image to image: edits of images by models that were saved for that, such as for inpainting."""

from stoker.diffusion.drawing.guided import DrawingStages
from stoker.diffusion.drawing.pipeline_families import IMAGE_CLASSES
from stoker.stages.kinds import ModelKind
from stoker.tasks.base import MediaPipeline
from stoker.tasks.text_to_image import EDITS, finish

PIPELINE = MediaPipeline(
    name="image-to-image",
    paths=(EDITS,),
    architectures=IMAGE_CLASSES,
    families=("stable-diffusion", "stable-diffusion-xl", "stable-diffusion-3", "flux"),
    kind=ModelKind.DRAWING,
    stages=DrawingStages,
    input_field="image",
    finish=finish,
)
