"""Text generation: what goes on from a conversation or a text."""

from stoker.llm.model_types import TEXT_GENERATION
from stoker.stages.kinds import ModelKind
from stoker.tasks.base import LanguagePipeline

PATHS = (
    *("/v1/chat/completions", "/v1/completions"),
    *("/v1/responses", "/v1/responses/input_tokens"),
)

PIPELINE = LanguagePipeline(
    name=TEXT_GENERATION,
    paths=PATHS,
    architectures=("*ForCausalLM", "*LMHeadModel"),
    kind=ModelKind.TEXT,
)
