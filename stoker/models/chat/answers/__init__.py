"""Writers of answers in the conventions of clients, with one file per convention."""

from stoker.models.chat.answers.answer_events import AnswerWriter
from stoker.models.chat.answers.chat_writer import ChatWriter
from stoker.models.chat.answers.completion_writer import CompletionWriter
from stoker.models.chat.answers.message_writer import MessageWriter
from stoker.models.chat.answers.response_writer import ResponseWriter, TokenCountWriter
from stoker.models.chat.answers.token_list_writer import TokenListWriter
from stoker.wire.generation_request import Generation, Sampling


def writer(generation: Generation, sampling: Sampling) -> AnswerWriter:
    """Returns the writer of a request's answers.

    Args:
        sampling: the request's options, completed with the model's defaults.
    """
    if generation.api == "responses":
        return ResponseWriter(generation, sampling)
    if generation.listing:
        return TokenListWriter()
    writers = {
        "chat": ChatWriter,
        "completions": CompletionWriter,
        "input_tokens": TokenCountWriter,
        "messages": MessageWriter,
        "count_tokens": TokenCountWriter,
    }
    return writers[generation.api](generation)
