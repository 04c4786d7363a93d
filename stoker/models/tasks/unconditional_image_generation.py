"""Unconditional image generation: images from noise, of the kind that the model was trained on."""

from stoker.models.diffusion.drawing.unconditional import UnconditionalStages
from stoker.models.stages.kinds import ModelKind
from stoker.models.tasks.base import MediaPipeline
from stoker.models.tasks.text_to_image import GENERATIONS, finish

PIPELINE = MediaPipeline(
    name="unconditional-image-generation",
    paths=(GENERATIONS,),
    architectures=UnconditionalStages.classes,
    families=("ddpm", "ddim"),
    kind=ModelKind.DRAWING,
    stages=UnconditionalStages,
    input_field="n",
    finish=finish,
)
