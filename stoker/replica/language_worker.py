"""A replica's work for a language model: prepare → steps → text, as it is generated.

It uses four threads: the caller's (input and output), one that prepares prompts, one that owns the
model, and one that turns tokens into text. A forward pass releases the GIL, so the others work at
the same time.
"""

import math
from collections.abc import Sequence

from stoker.models.adapters.applying import Adapters
from stoker.models.chat.answers import writer
from stoker.models.chat.answers.choices import Choice, TextRequest
from stoker.models.chat.prompts.prompts import Prompts
from stoker.models.llm.interface import LanguageModel, Output, Sleeper
from stoker.models.stages.base import InputError
from stoker.replica import failures
from stoker.replica.adapted import adapted
from stoker.replica.adoption import Prepare
from stoker.replica.counters import Counters
from stoker.replica.model_thread import ModelThread
from stoker.replica.open_requests import OpenRequests
from stoker.replica.passes import Passes
from stoker.replica.queue_thread import QueueThread
from stoker.replica.replies import Replies
from stoker.replica.sequences import Sequences
from stoker.wire.flight import FlightRecord
from stoker.wire.generation_request import TOOLS_FIELD
from stoker.wire.notices import Notice
from stoker.wire.passes import RecordedPasses
from stoker.wire.protocol import ChosenPrecision, Execution, Generate, RequestFailure, Send, Sharing
from stoker.wire.sleep import Sleep, Wake


class LanguageWorker:
    """`Serving` of a language model. A request has prompts, each with sequences for the
    scheduler.
    """

    is_settled = True
    precision: ChosenPrecision | None = None

    def __init__(
        self,
        model: LanguageModel,
        prompts: Prompts,
        send: Send,
        flight: FlightRecord,
        prepare: Prepare | None = None,
        *,
        passes: Passes | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        """
        Args:
            adapters: adapters that requests may name.
            prepare: see `LanguageEngine.prepare`. None: the model stays as it is.
            passes: turns to compute. None: the replica computes without waiting for a turn.
        """
        self._model = model
        self._adapters = adapters
        self._defaults = prompts.defaults
        self._sequences = Sequences(prompts, model.vocabulary)
        self._replies = Replies(send)
        self._flight = flight
        self.convertible = prepare is not None
        self.sharing: Sharing | None = None
        self.notices: Sequence[Notice] = ()
        self.device = ""
        self.counters = Counters()
        self._requests: OpenRequests[TextRequest] = OpenRequests()
        self._prompts_thread: QueueThread[TextRequest] = QueueThread(
            "prompts", self._prepare, self.counters
        )
        self._text_thread: QueueThread[list[Output]] = QueueThread(
            "text", self._write, self.counters
        )
        self._model_thread = ModelThread(
            model,
            self._sequences,
            flight,
            self.counters,
            prepare=prepare,
            passes=passes or Passes(),
            adopted=self._replies.adopted,
            stepped=self._text_thread.put,
            moved=self._replies.moved,
        )

    def start(self) -> None:
        self._prompts_thread.start()
        self._model_thread.start()
        self._text_thread.start()

    def stop(self) -> None:
        self._prompts_thread.finish()
        self._model_thread.finish()
        self._text_thread.finish()

    @property
    def accepted(self) -> int:
        return len(self._requests)

    @property
    def engine(self) -> str:
        return self._model.name

    @property
    def cache_usage(self) -> float | None:
        return self._model.usage

    @property
    def sleep_bytes(self) -> int | None:
        return self._model.sleep_bytes if isinstance(self._model, Sleeper) else None

    @property
    def recorded(self) -> RecordedPasses:
        # Engines of other packages may lack it.
        return getattr(self._model, "recorded", RecordedPasses())

    @property
    def alive(self) -> bool:
        return self._model.alive and not self.is_lost

    @property
    def is_lost(self) -> bool:
        return self._model_thread.is_lost

    @property
    def children(self) -> Sequence[int]:
        return self._model.children

    def measured(self) -> tuple[str, int] | None:
        return None

    def submit(self, message: Generate) -> None:
        generation = message.generation
        answer = writer(generation, self._defaults.filled(generation.sampling))
        request = TextRequest(message.id, generation, answer, message.key, message.tier)
        self._requests.open(request)
        self._prompts_thread.put(request, message.key, message.tier)

    def adopt(self, execution: Execution) -> None:
        self._model_thread.adopt(execution)

    def move(self, message: Sleep | Wake) -> None:
        """Moves the model's GPU memory to main memory or back."""
        self._model_thread.move(message)

    def cancel(self, request_id: int) -> None:
        """Frees what a request holds, at the latest after the current step."""
        if request := self._close(request_id):
            # Before the first token, the number of processed prompt tokens is unknown.
            self._replies.cancelled(request_id, request.counts if request.has_output else {})

    # --- the prompts' thread ---

    def _prepare(self, request: TextRequest) -> None:
        if request.done:
            return
        with self._flight.preparing.of([request.id]):
            try:
                self._submit(request)
            except Exception as error:
                self._fail(failures.failure(request.id, failures.PREPARE_PROMPT, error, _field))

    def _submit(self, request: TextRequest) -> None:
        named = request.generation.adapter
        request.adapter = adapted(self._adapters, named.folder if named else "")
        submissions = self._sequences.prepare(request)
        if not submissions:
            self._finish(request)
            return
        request.missing = len(request.choices)
        if request.generation.stream:
            request.streaming = True
            self._replies.parts([(request.id, request.writer.begin(request.usage))])
        request.phases.enter("first_token")
        self._model_thread.submit(submissions)
        if request.done:
            # The request was cancelled meanwhile, before all its sequences could be dropped.
            self._forget(request)

    # --- the text's thread ---

    def _write(self, outputs: Sequence[Output]) -> None:
        # A single message per step for all streams: a message costs both ends more than its
        # content.
        parts: list[tuple[int, bytes]] = []
        for output in outputs:
            choice = self._sequences.choice(output.id)
            if choice is None or choice.ended:
                continue
            request, failure = choice.request, _failure(choice, output)
            try:
                if not failure and (part := self._written(choice, output)):
                    parts.append((request.id, part))
            except Exception as error:
                failure = failures.failure(request.id, failures.WRITE_ANSWER, error, _field)
            if failure or request.missing == 0:
                self._replies.parts(parts)
                parts.clear()
                if failure:
                    self._fail(failure)
                else:
                    self._finish(request)
        self._replies.parts(parts)

    def _written(self, choice: Choice, output: Output) -> bytes:
        """Returns the bytes that a step adds to the stream of a request."""
        request = choice.request
        if not request.has_output:
            request.has_output = True
            request.phases.enter("decode")
        events = choice.add(output)
        if choice.ended:
            self._sequences.drop(choice.sequence)
            if choice.stopped and not output.finish:
                # The model does not notice the end by itself: it reads tokens, not text.
                self._model_thread.forget([choice.sequence])
        return request.writer.add(choice.index, events) if events else b""

    # --- the ends of a request ---

    def _finish(self, request: TextRequest) -> None:
        if self._close(request.id):
            request.phases.enter("finish")
            end = request.writer.end(request.usage)
            self._replies.result(request.id, end, request.counts, request.phases.end())

    def _fail(self, failure: RequestFailure) -> None:
        request = self._close(failure.id)
        if request is None:
            return
        if request.streaming:
            # The status was sent already, so only the stream can report the failure.
            end = request.writer.fail(failure.code, failure.message)
            self._replies.result(request.id, end, request.counts, {})
        else:
            self._replies.failure(failure)

    def _close(self, request_id: int) -> TextRequest | None:
        """Removes and returns a request to answer it. None if it was answered or cancelled
        before.
        """
        if request := self._requests.close(request_id):
            self._forget(request)
        return request

    def _forget(self, request: TextRequest) -> None:
        """Makes the model drop a request's unfinished sequences."""
        ended: list[int] = []
        for choice in request.choices:
            if not choice.ended:
                choice.ended = True
                self._sequences.drop(choice.sequence)
                ended.append(choice.sequence)
        self._model_thread.forget(ended)


def _failure(choice: Choice, output: Output) -> RequestFailure | None:
    """Returns the failure for the client if the model could not continue."""
    request = choice.request
    if not output.error:
        if _has_nan(output):
            return failures.model_failure(request.id, failures.NO_NUMBERS.message)
        return None
    if output.form:
        field = TOOLS_FIELD if choice.calls else request.generation.form_field
        return RequestFailure(request.id, "invalid_request", output.error, field)
    return failures.model_failure(request.id, output.error)


def _has_nan(output: Output) -> bool:
    """Returns True if a log probability is NaN. JSON would have null there."""
    end = [output.end] if output.end else []
    return any(math.isnan(each.value) for each in (*output.prompt, *output.logprobs, *end))


def _field(error: InputError | None) -> str | None:
    """Returns the request's field at fault for an error."""
    return error.field if error else None
