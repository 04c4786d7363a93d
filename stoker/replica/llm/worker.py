"""A replica's work for a language model: prepare → steps → text, as it comes.

Four threads: the caller's (input and output), one that prepares prompts, one that owns the model,
one that turns tokens into text. A forward pass releases the GIL, so the others work beside it.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stoker.replica.flight import FlightRecord
from stoker.replica.llm.answers import writer
from stoker.replica.llm.events import Event, Finished, Text, TokenLogprob, Usage, Writer
from stoker.replica.llm.forms import Forms
from stoker.replica.llm.interface import Finish, LanguageModel, Logprob, Output, Submission
from stoker.replica.llm.prompts import Prepared, Prompts
from stoker.replica.llm.reading import Dialect, Reader
from stoker.replica.llm.text import Detokenizer, Stops
from stoker.replica.llm.wire import TOOLS_FIELD, Conversation, Generation
from stoker.replica.phases import Phases
from stoker.replica.protocol import (
    Batches,
    Cancelled,
    Execution,
    Failure,
    Generate,
    Parts,
    Result,
    Send,
    Sharing,
)
from stoker.replica.stages import InputError

log = logging.getLogger(__name__)


_PREPARING, _RUNNING = 0, 1
_IDLE_S = 0.25


@dataclass(eq=False)
class Choice:
    """One of a request's answers."""

    request: "Request"
    index: int
    sequence: int
    """Its number with the language model."""
    text: Detokenizer
    stops: Stops
    reader: Reader | None
    ended: bool = False
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])


@dataclass(eq=False)
class Request:
    id: int
    asked: Generation
    writer: Writer
    choices: list[Choice] = field(default_factory=list[Choice])
    missing: int = 0
    usage: Usage = field(default_factory=Usage)
    begun: bool = False
    """Whether a part of the stream was sent."""
    heard: bool = False
    """Whether the model has given something."""
    done: bool = False
    phases: Phases = field(default_factory=lambda: Phases("prepare"))

    @property
    def counts(self) -> dict[str, int]:
        """As `Result.counts`."""
        return {"input_tokens": self.usage.prompt, "output_tokens": self.usage.completion}


class LanguageWorker:
    """See `Worker`, whose place it takes."""

    def __init__(
        self,
        model: LanguageModel,
        prompts: Prompts,
        send: Send,
        flight: FlightRecord,
        adopt: Callable[[Execution], None] | None = None,
    ) -> None:
        """
        Args:
            adopt: has the model go on as it was converted; None: it cannot.
        """
        self._adopt = adopt
        self._model = model
        self._prompts = prompts
        self._send = send
        self._flight = flight
        self._dialect = Dialect(prompts.tokenizer)
        self._forms = Forms(prompts, self._dialect, model.vocabulary)
        self._requests: dict[int, Request] = {}
        self._choices: dict[int, Choice] = {}
        self._numbers = 0
        self._inbox: deque[Submission | int] = deque()
        """For the model's thread: sequences to continue, numbers of those to forget."""
        self._news = threading.Event()
        self._stopping = False
        self._waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._outputs: queue.SimpleQueue[list[Output] | None] = queue.SimpleQueue()
        self._adopting: Execution | None = None
        self.sharing: Sharing | None = None
        self.progress = 0
        self.busy_s = 0.0
        self.batches = Batches()
        self._threads = {
            name: threading.Thread(target=run, name=name, daemon=True)
            for name, run in (
                ("prompts", self._run_prompts),
                ("model", self._run_model),
                ("text", self._run_text),
            )
        }

    def start(self) -> None:
        for thread in self._threads.values():
            thread.start()

    def stop(self) -> None:
        """Finish what was accepted, then end the threads."""
        self._waiting.put(None)
        self._threads["prompts"].join()
        self._stopping = True
        self._wake()
        self._threads["model"].join()
        self._outputs.put(None)
        self._threads["text"].join()

    @property
    def accepted(self) -> int:
        return len(self._requests)

    def submit(self, message: Generate) -> None:
        asked = message.generation
        request = Request(message.id, asked, writer(asked))
        self._requests[message.id] = request
        self._waiting.put(request)

    def cancel(self, request_id: int) -> None:
        """Free what a request holds, at the latest after the step that runs."""
        if request := self._requests.pop(request_id, None):
            self._forget(request)
            # Before its first token nobody knows how much of the prompt was read.
            self._send(Cancelled(request_id, request.counts if request.heard else {}), None)

    @property
    def engine(self) -> str:
        return self._model.name

    @property
    def convertible(self) -> bool:
        return self._adopt is not None

    @property
    def cache_usage(self) -> float | None:
        return self._model.usage

    @property
    def alive(self) -> bool:
        return self._model.alive

    @property
    def children(self) -> Sequence[int]:
        return self._model.children

    def measured(self) -> tuple[str, int] | None:
        return None

    def adopt(self, execution: Execution) -> None:
        self._adopting = execution
        self._wake()

    # --- the prompts' thread ---

    def _run_prompts(self) -> None:
        while (request := self._waiting.get()) is not None:
            if request.done:
                continue
            self._flight.set(_PREPARING, [request.id])
            try:
                self._prepare(request)
            except InputError as error:
                failure = Failure(request.id, error.code, error.message, error.field)
                self._finish(request, failure)
            except Exception:
                log.exception("a prompt could not be prepared")
                self._finish(request, _internal(request, "The prompt could not be prepared."))
            finally:
                self._flight.set(_PREPARING, [])
            self.progress += 1

    def _prepare(self, request: Request) -> None:
        asked = request.asked
        if asked.sampling.logprobs is not None:
            # They tell tokens' bytes.
            _ = self._forms.grammars
        submissions: list[Submission] = []
        for place, prompt in enumerate(asked.prompts):
            field_name = asked.place(place)
            prepared = self._prompts.prepare(prompt, field_name)
            sampling = self._prompts.limited(prepared, asked, field_name)
            request.usage.prompt += len(prepared.tokens)
            after = self._dialect.end_of_reasoning(prepared.text)
            form = self._forms.form(asked, after)
            first: int | None = None
            for number in range(asked.n):
                choice = self._choice(request, place * asked.n + number, prompt, prepared)
                submissions.append(
                    Submission(
                        id=choice.sequence,
                        prompt=prepared.tokens,
                        sampling=sampling.of(number),
                        matcher=self._forms.matcher(form, after) if form else None,
                        after=first,
                        media=prepared.media,
                    )
                )
                first = choice.sequence if first is None else first
        request.missing = len(request.choices)
        if asked.stream:
            request.begun = True
            self._send_parts([(request.id, request.writer.begin())])
        request.phases.enter("first_token")
        self._inbox.extend(submissions)
        self._wake()
        if request.done:
            # It was cancelled meanwhile, when not all of this was there to be forgotten.
            self._forget(request)

    def _choice(self, request: Request, index: int, prompt: object, prepared: Prepared) -> Choice:
        asked = request.asked
        chat = isinstance(prompt, Conversation)
        offered = asked.tools.functions if asked.tools and asked.tools.choice != "none" else []
        self._numbers += 1
        choice = Choice(
            request,
            index,
            self._numbers,
            Detokenizer(self._prompts.tokenizer.backend_tokenizer, self._prompts.hidden),
            Stops(asked.sampling.stop),
            self._dialect.reader(prepared.text, tools=offered, either=asked.guide is not None)
            if chat
            else None,
        )
        request.choices.append(choice)
        self._choices[choice.sequence] = choice
        return choice

    def _wake(self) -> None:
        """There is news for the model's thread, whether it waits for work or for a step."""
        self._news.set()
        self._model.wake()

    # --- the model's thread ---

    def _run_model(self) -> None:
        self._model.enter_thread()
        while True:
            if not self._model.running and not self._inbox:
                if self._stopping:
                    return
                self._news.wait(_IDLE_S)
            self._news.clear()
            self._take_in()
            if execution := self._adopting:
                self._adopting = None
                self._go_on_with(execution)
            if self._model.running:
                self._step()

    def _take_in(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, int):
                self._model.cancel(message)
            else:
                self._model.submit(message)

    def _go_on_with(self, execution: Execution) -> None:
        try:
            if self._adopt:
                self._adopt(execution)
        except Exception:
            log.exception("the converted model could not be taken; going on without it")

    def _step(self) -> None:
        self._flight.set(_RUNNING, {one.request.id for one in list(self._choices.values())})
        started = time.perf_counter()
        try:
            outputs = self._model.step()
        except Exception:
            log.exception("a step failed")
            outputs = self._model.abandon("The model failed while it wrote this answer.")
        finally:
            self._flight.set(_RUNNING, [])
        self.busy_s += time.perf_counter() - started
        if outputs is None:
            return
        self.progress += 1
        if outputs:
            self.batches.count(len(outputs))
            self._outputs.put(outputs)

    # --- the text's thread ---

    def _run_text(self) -> None:
        while (outputs := self._outputs.get()) is not None:
            # One message a step, for all streams: it costs both ends more than what it holds.
            parts: list[tuple[int, bytes]] = []
            for output in outputs:
                choice = self._choices.get(output.id)
                if choice is None or choice.ended:
                    continue
                request, failure = choice.request, _failure(choice, output)
                try:
                    if not failure and (part := self._written(choice, output)):
                        parts.append((request.id, part))
                except Exception:
                    log.exception("an answer could not be written")
                    failure = _internal(request, "The answer was unreadable.")
                if failure or request.missing == 0:
                    self._send_parts(parts)
                    parts.clear()
                    self._finish(request, failure)
            self._send_parts(parts)

    def _send_parts(self, parts: Sequence[tuple[int, bytes]]) -> None:
        if parts:
            ids, contents = zip(*parts, strict=True)
            sizes = [len(content) for content in contents]
            self._send(Parts(list(ids), sizes), b"".join(contents))

    def _written(self, choice: Choice, output: Output) -> bytes:
        """What a step adds to the stream of a request."""
        request = choice.request
        if not request.heard:
            request.heard = True
            request.phases.enter("decode")
        request.usage.completion += len(output.tokens)
        request.usage.cached += output.cached
        if choice.reader and choice.reader.reasoning:
            request.usage.reasoning += len(output.tokens)
        choice.logprobs += [self._logprob(one) for one in output.logprobs]
        text = choice.text.add(output.tokens)
        if output.finish:
            text += choice.text.finish()
        text, stopped = choice.stops.add(text)
        if output.finish and not stopped:
            text += choice.stops.finish()
        events = self._read(choice, text)
        if output.finish or stopped:
            if stopped and not output.finish:
                # The model has not noticed: it reads tokens, not text.
                self._inbox.append(choice.sequence)
                self._wake()
            events += self._finished(choice, "stop" if stopped else output.finish or "stop")
        return request.writer.add(choice.index, events) if events else b""

    def _read(self, choice: Choice, text: str) -> list[Event]:
        if not text:
            return []
        logprobs, choice.logprobs = choice.logprobs, []
        if choice.reader is None:
            return [Text(text, logprobs=logprobs)]
        return choice.reader.add(text, logprobs)

    def _finished(self, choice: Choice, reason: Finish) -> list[Event]:
        events: list[Event] = []
        if choice.reader:
            events += choice.reader.finish()
        if choice.logprobs:
            events.append(Text("", logprobs=choice.logprobs))
        called = choice.reader is not None and choice.reader.calls
        choice.ended = True
        choice.request.missing -= 1
        self._choices.pop(choice.sequence, None)
        return [*events, Finished("tool_calls" if called and reason == "stop" else reason)]

    def _logprob(self, one: Logprob) -> TokenLogprob:
        top = [self._token(token, value) for token, value in one.top]
        return self._token(one.token, one.value, top)

    def _token(self, token: int, value: float, top: Sequence[TokenLogprob] = ()) -> TokenLogprob:
        content = self._forms.bytes_of(token)
        return TokenLogprob(content.decode("utf-8", "replace"), content, value, top)

    # --- the ends of a request ---

    def _finish(self, request: Request, failure: Failure | None = None) -> None:
        if not self._close(request):
            return
        if not failure:
            request.phases.enter("finish")
            end = request.writer.end(request.usage)
            self._send(Result(request.id, request.counts, request.phases.end()), end)
        elif request.begun:
            # Its status was sent: only the stream itself can tell.
            end = request.writer.fail(failure.code, failure.message)
            self._send(Result(request.id, request.counts), end)
        else:
            self._send(failure, None)

    def _close(self, request: Request) -> bool:
        """End a request; False where it was answered or cancelled before."""
        if request.done:
            return False
        self._requests.pop(request.id, None)
        self._forget(request)
        return True

    def _forget(self, request: Request) -> None:
        request.done = True
        for choice in request.choices:
            if not choice.ended:
                choice.ended = True
                self._choices.pop(choice.sequence, None)
                self._inbox.append(choice.sequence)
        self._wake()


def _failure(choice: Choice, output: Output) -> Failure | None:
    """What the client learns where the model could not go on."""
    request, reader = choice.request, choice.reader
    if not output.error:
        return None
    if output.form:
        calls = reader is not None and (reader.calling or reader.calls)
        field = TOOLS_FIELD if calls else request.asked.form_field
        return Failure(request.id, "invalid_request", output.error, field)
    return _internal(request, output.error)


def _internal(request: Request, message: str) -> Failure:
    return Failure(request.id, "inference_failed", message, None)
