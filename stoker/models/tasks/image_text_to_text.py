"""Image and text to text: the continuation of a conversation with images."""

from stoker.models.llm.model_types import IMAGE_TEXT_TO_TEXT, VISION
from stoker.models.stages.kinds import ModelKind
from stoker.models.tasks.base import LanguagePipeline
from stoker.models.tasks.text_generation import PATHS

PIPELINE = LanguagePipeline(
    name=IMAGE_TEXT_TO_TEXT,
    paths=PATHS,
    architectures=tuple(VISION),
    kind=ModelKind.VISION,
)
