"""Writes answers down in the conventions of the clients. One file a convention."""

from stoker.replica.llm.answers.chat import ChatWriter
from stoker.replica.llm.answers.completions import CompletionWriter
from stoker.replica.llm.answers.responses import InputTokensWriter, ResponseWriter
from stoker.replica.llm.events import Writer
from stoker.replica.llm.wire import Generation


def writer(asked: Generation) -> Writer:
    """What writes the answers to a request."""
    writers = {
        "chat": ChatWriter,
        "completions": CompletionWriter,
        "responses": ResponseWriter,
        "input_tokens": InputTokensWriter,
    }
    return writers[asked.api](asked)
