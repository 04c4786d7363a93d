"""Image to image: edits of images by models that were saved for this purpose, such as
inpainting.
"""

from stoker.models.diffusion.drawing.guided import DrawingStages
from stoker.models.diffusion.drawing.pipeline_families import IMAGE_CLASSES
from stoker.models.stages.kinds import ModelKind
from stoker.models.tasks.base import MediaPipeline
from stoker.models.tasks.text_to_image import EDITS, finish

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
