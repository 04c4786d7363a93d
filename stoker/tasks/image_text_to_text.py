"""Image and text to text: what goes on from a conversation that holds images."""

from stoker.llm.model_types import IMAGE_TEXT_TO_TEXT, VISION
from stoker.stages.kinds import ModelKind
from stoker.tasks.base import LanguagePipeline
from stoker.tasks.text_generation import PATHS

PIPELINE = LanguagePipeline(
    name=IMAGE_TEXT_TO_TEXT,
    paths=PATHS,
    architectures=tuple(VISION),
    kind=ModelKind.VISION,
)
