"""Text generation: the continuation of a conversation or a text."""

from stoker.models.llm.model_types import TEXT_GENERATION
from stoker.models.stages.kinds import ModelKind
from stoker.models.tasks.base import LanguagePipeline

PATHS = (
    *("/v1/chat/completions", "/v1/completions"),
    *("/v1/responses", "/v1/responses/input_tokens"),
    *("/v1/messages", "/v1/messages/count_tokens"),
)

PIPELINE = LanguagePipeline(
    name=TEXT_GENERATION,
    paths=PATHS,
    architectures=("*ForCausalLM", "*LMHeadModel"),
    kind=ModelKind.TEXT,
)
