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
from dataclasses import replace

from stoker.chat.answers import writer
from stoker.chat.answers.choices import Choice, Request
from stoker.chat.answers.detokenizing import Detokenizer, Stops
from stoker.chat.answers.echo import Echo, placed
from stoker.chat.answers.reading import Dialect, Reader
from stoker.chat.forms.forms import Forms
from stoker.chat.prompts.prompts import Prepared, Prompts
from stoker.llm.interface import LanguageModel, Output, Submission
from stoker.stages.base import InputError
from stoker.wire.flight import FlightRecord
from stoker.wire.generation_request import MAX_SCORED, TOOLS_FIELD, Conversation, Generation, Prompt
from stoker.wire.protocol import (
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

log = logging.getLogger(__name__)


_PREPARING, _RUNNING = 0, 1
_IDLE_S = 0.25


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
            prepared = self._prompts.prepare(prompt, field_name, asked.sampling.max_tokens)
            request.usage.prompt += len(prepared.tokens)
            if asked.api == "input_tokens":
                continue
            _check_scored(request)
            sampling = self._prompts.limited(prepared, asked, field_name)
            after = self._dialect.end_of_reasoning(prepared.text)
            form = self._forms.form(asked, after)
            echo = self._echo(asked, prompt, prepared)
            first: int | None = None
            for number in range(asked.n):
                choice = self._choice(request, place * asked.n + number, prompt, prepared)
                choice.echo = echo and replace(echo, logprobs=[])
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
        if not submissions:
            self._finish(request)
            return
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

    def _choice(self, request: Request, index: int, prompt: Prompt, prepared: Prepared) -> Choice:
        asked = request.asked
        reader: Reader | None = None
        if isinstance(prompt, Conversation):
            tools, either = asked.tools, asked.guide is not None
            offered = tools.offered() if tools else []
            reader = self._dialect.reader(prepared.text, tools=offered, either=either)
        self._numbers += 1
        choice = Choice(
            request,
            index,
            self._numbers,
            Detokenizer(self._prompts.tokenizer.backend_tokenizer, self._prompts.hidden),
            Stops(asked.sampling.stop),
            reader,
            self._forms.bytes_of,
        )
        request.choices.append(choice)
        self._choices[choice.sequence] = choice
        return choice

    def _echo(self, asked: Generation, prompt: Prompt, prepared: Prepared) -> Echo | None:
        if not asked.echo or isinstance(prompt, Conversation):
            return None
        text, offsets = placed(self._prompts.tokenizer, prompt)
        if asked.sampling.prompt_logprobs is None:
            return Echo(text)
        tokens = [self._forms.bytes_of(token) for token in prepared.tokens]
        return Echo(text, [one.decode("utf-8", "replace") for one in tokens], offsets)

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
        events = choice.add(output)
        if choice.ended:
            self._choices.pop(choice.sequence, None)
            if choice.stopped and not output.finish:
                # The model has not noticed: it reads tokens, not text.
                self._inbox.append(choice.sequence)
                self._wake()
        return request.writer.add(choice.index, events) if events else b""

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


def _check_scored(request: Request) -> None:
    """Raise `InputError` where more tokens of prompts are to be told of than an answer may hold."""
    asked = request.asked
    tokens = request.usage.prompt * asked.n
    if asked.sampling.prompt_logprobs is not None and tokens > MAX_SCORED:
        raise InputError(
            f"'echo' with 'logprobs' tells of each of the prompts' tokens: here {tokens} or more. "
            f"A request may have at most {MAX_SCORED}: send fewer prompts at once.",
            field="prompt",
            of_item=False,
        )


def _failure(choice: Choice, output: Output) -> Failure | None:
    """What the client learns where the model could not go on."""
    request = choice.request
    if not output.error:
        return None
    if output.form:
        field = TOOLS_FIELD if choice.calls else request.asked.form_field
        return Failure(request.id, "invalid_request", output.error, field)
    return _internal(request, output.error)


def _internal(request: Request, message: str) -> Failure:
    return Failure(request.id, "inference_failed", message, None)
