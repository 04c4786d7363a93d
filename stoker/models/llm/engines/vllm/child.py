"""Child process of a replica that runs vLLM: tokens in, tokens out, step by step.

It runs on the interpreter of vLLM's environment. From Stoker, it imports only modules that need the
standard library, msgspec, numpy, torch and llguidance, which vLLM also installs. It fetches nothing
and listens on no port.
"""

import importlib
import logging
import os
import queue
import socket
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from stoker import sandbox
from stoker.models.llm.engines.vllm.channel import (
    Abort,
    Begin,
    ChildChannel,
    LoadModel,
    LoadRefused,
    Stepped,
    Submit,
    ToChild,
)
from stoker.models.llm.engines.vllm.engine import ChildEngine, FormsUnsupportedError
from stoker.models.llm.interface import Output
from stoker.wire.sleep import Moved, Sleep, Wake

log = logging.getLogger(__name__)


Incoming = Begin | Submit | Abort | Sleep | Wake
"""Messages after the model is loaded."""


class Inbox:
    """Messages of the replica, read and prepared on a separate thread in parallel with the
    steps.
    """

    def __init__(self, channel: ChildChannel[ToChild], folder: str, vocabulary: int) -> None:
        self._channel = channel
        self._folder = folder
        self._vocabulary = vocabulary
        self._ends: Sequence[int] = ()
        self._matchers: Any = None
        self._found: queue.SimpleQueue[tuple[Incoming, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def take(self, *, wait: bool) -> list[tuple[Incoming, Any]]:
        """Returns messages. A `Submit` comes with its matcher or with the error of creating it."""
        messages = [self._found.get()] if wait else []
        while not self._found.empty():
            messages.append(self._found.get())
        return messages

    def _read(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                if not isinstance(message, LoadModel):
                    self._found.put((message, self._prepared(message)))
        except Exception:
            log.exception("messages cannot be read any more")
        # The replica has ended or sends invalid messages, so no caller remains.
        os._exit(0)

    def _prepared(self, message: Incoming) -> Any:
        if isinstance(message, Begin):
            self._ends = message.ends
        if not isinstance(message, Submit) or not message.grammar:
            return None
        try:
            if self._matchers is None or list(self._matchers.plain) != message.plain:
                self._matchers = self._made(message.plain)
            return self._matchers.matcher(message.grammar, message.after)
        except Exception as error:
            log.exception("grammar could not be compiled")
            return error

    def _made(self, plain: Sequence[int]) -> Any:
        matcher: Any = importlib.import_module("stoker.models.llm.matcher")
        transformers: Any = importlib.import_module("transformers")
        tokenizer = transformers.AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
        return matcher.Matchers(tokenizer, self._vocabulary, self._ends, plain)


def _serve(channel: ChildChannel[ToChild], engine: ChildEngine, inbox: Inbox) -> None:
    while True:
        outputs: list[Output] = []
        for message, prepared in inbox.take(wait=not engine.busy):
            match message:
                case Begin():
                    engine.ends = message.ends
                case Abort():
                    engine.abort(message.id)
                case Submit():
                    outputs += _submitted(engine, message, prepared)
                case Sleep():
                    channel.send(_moved(engine.sleep))
                case Wake():
                    channel.send(_moved(engine.wake_up))
        if engine.busy:
            outputs += engine.step()
        channel.send(Stepped(outputs, engine.usage))


def _submitted(engine: ChildEngine, message: Submit, prepared: Any) -> list[Output]:
    """Submits a sequence to the engine. Returns an output with the error if that fails."""
    if isinstance(prepared, Exception):
        error = f"The form of the answer {prepared}."
        return [Output(message.id, [], [], error=error, form=True)]
    try:
        engine.submit(message, prepared)
    except FormsUnsupportedError as error:
        return [Output(message.id, [], [], error=str(error), form=True)]
    except ValueError:
        log.exception("vLLM rejected a sequence")
        return [Output(message.id, [], [], error="The model cannot process this request.")]
    return []


def _moved(move: Callable[[], int]) -> Moved:
    try:
        return Moved(held_bytes=move())
    except Exception as error:
        log.exception("weights could not be moved")
        return Moved(str(error).strip() or type(error).__name__)


def _stop_listening() -> None:
    """Closes the sockets on which gloo listens. A group of one process receives no connections."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for place in Path("/proc/self/fd").iterdir():
        descriptor = int(place.name)
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
        except OSError:
            # This is the descriptor of the directory listing itself.
            continue
        with socket.socket(fileno=os.dup(descriptor)) as duplicate:
            listens = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if listens:
            # Replaced rather than closed, so that the library's descriptor does not become another
            # file's.
            os.dup2(nothing, descriptor)
    os.close(nothing)


def main() -> None:
    descriptor, parent = int(sys.argv[2]), int(sys.argv[3])
    sandbox.die_with_parent()
    if os.getppid() != parent:
        return
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    channel: ChildChannel[ToChild] = ChildChannel(socket.socket(fileno=descriptor), ToChild)
    load = cast("LoadModel", channel.receive())
    try:
        engine = ChildEngine(load)
    except Exception as error:
        log.exception("vLLM could not load the model")
        channel.send(LoadRefused(str(error).strip() or type(error).__name__))
        return
    if load.devices == 1:
        _stop_listening()
    channel.send(engine.facts)
    _serve(channel, engine, Inbox(channel, load.folder, engine.facts.vocabulary))


if __name__ == "__main__":
    main()
