"""The formats in which models write tool calls, and their readers."""

from stoker.models.chat.answers.call_formats.calls import (
    MalformedCallError,
    ParsedCall,
    UnwritableCallError,
    arguments_text,
)
from stoker.models.chat.answers.call_formats.format import Format
from stoker.models.chat.answers.call_formats.table import FORMATS

__all__ = [
    "FORMATS",
    "Format",
    "MalformedCallError",
    "ParsedCall",
    "UnwritableCallError",
    "arguments_text",
]
