"""Writes answers down in the conventions of the clients. One file a convention."""

from stoker.models.chat.answers.answer_events import Writer
from stoker.models.chat.answers.chat_writer import ChatWriter
from stoker.models.chat.answers.completion_writer import CompletionWriter
from stoker.models.chat.answers.response_writer import InputTokensWriter, ResponseWriter
from stoker.wire.generation_request import Generation


def writer(generation: Generation) -> Writer:
    """What writes the answers to a request."""
    writers = {
        "chat": ChatWriter,
        "completions": CompletionWriter,
        "responses": ResponseWriter,
        "input_tokens": InputTokensWriter,
    }
    return writers[generation.api](generation)
