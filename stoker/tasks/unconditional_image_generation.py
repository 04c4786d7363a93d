"""Unconditional image generation: images of the kind that the model has learnt, from noise."""

from stoker.diffusion.drawing.unconditional import UnconditionalStages
from stoker.stages.kinds import ModelKind
from stoker.tasks.base import MediaPipeline
from stoker.tasks.text_to_image import GENERATIONS, finish

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
