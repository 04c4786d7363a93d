"""Facts about a language model that its small files tell: its context, and what it can do."""

from collections.abc import Mapping

from stoker.inspection.config import CONFIG
from stoker.inspection.documents import Json
from stoker.inspection.gguf import GgufHeader
from stoker.models.llm.model_types import IMAGE_TEXT_TO_TEXT, LENGTH_FIELDS, TEXT_GENERATION

CHAT, TOOLS, REASONING = "chat", "tools", "reasoning"


def context_tokens(pipeline: str, documents: Mapping[str, Json]) -> int | None:
    """Returns the maximum tokens of prompt and answer. None if the model generates no text, or if
    its config.json does not say.
    """
    config = documents.get(CONFIG)
    if pipeline not in (TEXT_GENERATION, IMAGE_TEXT_TO_TEXT) or not isinstance(config, dict):
        return None
    text = config.get("text_config")
    fields = text if isinstance(text, dict) else config
    lengths = (fields.get(name) for name in LENGTH_FIELDS)
    return next((length for length in lengths if type(length) is int and length > 0), None)


def gguf_context_tokens(header: GgufHeader) -> int | None:
    length = header.metadata.get(f"{header.metadata['general.architecture']}.context_length")
    return length if type(length) is int and length > 0 else None


def abilities(pipeline: str, template: str | None) -> tuple[str, ...] | None:
    """Returns what a chat template adds to a language model. None if the model generates no
    text.
    """
    if pipeline not in (TEXT_GENERATION, IMAGE_TEXT_TO_TEXT):
        return None
    if not template:
        return ()
    # Imported here because only inspections need the formats of answers.
    from stoker.models.chat.answers.call_formats.framing import framing_of

    framing = framing_of(template, thinks=False)
    found = [CHAT]
    if "tools" in template:
        found.append(TOOLS)
    if framing.reasoning or framing.headers:
        found.append(REASONING)
    return tuple(found)
