"""Writes answers down in the conventions of the clients. One file a convention."""

from stoker.chat.answers.chat import ChatWriter
from stoker.chat.answers.completions import CompletionWriter
from stoker.chat.answers.events import Writer
from stoker.chat.answers.responses import InputTokensWriter, ResponseWriter
from stoker.wire.generation import Generation


def writer(asked: Generation) -> Writer:
    """What writes the answers to a request."""
    writers = {
        "chat": ChatWriter,
        "completions": CompletionWriter,
        "responses": ResponseWriter,
        "input_tokens": InputTokensWriter,
    }
    return writers[asked.api](asked)
