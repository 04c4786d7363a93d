"""The thread that owns a language model: accepts sequences and runs steps while any remain."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from stoker.models.engines.recording_guard import DeviceLostError
from stoker.models.llm.interface import LanguageModel, Output, Resting, Sleeper, Submission
from stoker.replica.adoption import Adoption, Prepare
from stoker.replica.counters import Counters
from stoker.replica.idle_work import QUIET_S
from stoker.replica.named_thread import NamedThread
from stoker.replica.passes import Passes
from stoker.replica.sequences import Sequences
from stoker.wire.flight import FlightRecord
from stoker.wire.protocol import Execution
from stoker.wire.sleep import Moved, Sleep, Wake

log = logging.getLogger(__name__)


class ModelThread:
    """Thread of a language model. Other threads submit and drop sequences through its inbox."""

    def __init__(
        self,
        model: LanguageModel,
        sequences: Sequences,
        flight: FlightRecord,
        counters: Counters,
        *,
        prepare: Prepare | None,
        passes: Passes,
        adopted: Callable[[bool], None],
        stepped: Callable[[list[Output]], None],
        moved: Callable[[Moved], None],
    ) -> None:
        """
        Args:
            prepare: see `LanguageEngine.prepare`. None: the model stays as it is.
            adopted: receives True if an offered converted model was adopted.
            stepped: receives the outputs of each step that has outputs, on this thread.
            moved: receives the outcome of each move.
        """
        self._model = model
        self._sequences = sequences
        self._adoption = Adoption(prepare, self._wake, adopted)
        self._flight = flight
        self._counters = counters
        self._passes = passes
        self._stepped = stepped
        self._moved = moved
        self._inbox: deque[Submission | Sleep | Wake | int] = deque()
        """Sequences to continue, moves, and numbers of sequences to drop."""
        self._news = threading.Event()
        self._stopping = False
        self._has_stepped = False
        self.is_lost = False
        """True once the thread has ended because of its device."""
        self._pulse = counters.pulse(lambda: bool(self._inbox) or model.at_work)
        self._thread = NamedThread("engine", self._run)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Runs submitted sequences to their end, then ends the thread."""
        self._stopping = True
        self._wake()
        self._thread.join()

    def submit(self, submissions: Iterable[Submission]) -> None:
        """Submits sequences, which take part from the next step on. Callable from any thread."""
        self._inbox.extend(submissions)
        self._wake()

    def forget(self, sequences: Iterable[int]) -> None:
        """Frees what sequences hold, at the latest after the current step. Callable from any
        thread.
        """
        self._inbox.extend(sequences)
        self._wake()

    def move(self, message: Sleep | Wake) -> None:
        """Moves the model's GPU memory. Callable from any thread, while no sequence runs."""
        self._inbox.append(message)
        self._wake()

    def adopt(self, execution: Execution) -> None:
        """Continues with the converted model once it is ready, after the step that runs then."""
        self._adoption.offer(execution)

    def _wake(self) -> None:
        """Wakes the thread, whether it waits for work or for a step."""
        self._news.set()
        self._model.wake()

    def _run(self) -> None:
        self._model.enter_thread()
        while not self.is_lost:
            if not self._model.running and not self._inbox:
                if self._stopping:
                    return
                self._rest()
                if self.is_lost:
                    return
                self._news.wait()
            self._news.clear()
            self._take_in()
            if self._adoption.pending:
                with self._pulse:
                    self._adoption.adopt()
            if self._model.running and not self._pauses():
                self._step()

    def _pauses(self) -> bool:
        """Waits for a message if the model expects a more urgent one. Returns False if not."""
        # Models of other packages may lack it.
        pause_s: float = getattr(self._model, "pause_s", 0.0)
        if pause_s > 0:
            self._news.wait(pause_s)
        return pause_s > 0

    def _rest(self) -> None:
        """Prepares faster steps until a message arrives. Runs only after the first step, so that it
        does not delay a cold model's first answer, and once no request is expected soon.
        """
        if not self._has_stepped or not isinstance(self._model, Resting):
            return
        try:
            while not self._news.wait(QUIET_S) and self._model.rest():
                pass
        except DeviceLostError:
            self._lose()
        except Exception:
            log.exception("faster steps could not be prepared")

    def _lose(self) -> None:
        log.exception("the device is lost; the replica ends")
        self.is_lost = True

    def _take_in(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, int):
                self._model.cancel(message)
            elif isinstance(message, Sleep | Wake):
                with self._pulse:
                    self._moved(_move(self._model, message))
            else:
                self._model.submit(message)

    def _step(self) -> None:
        with self._flight.running.of(self._sequences.request_ids()):
            self._pulse.is_working = True
            started = time.perf_counter()
            try:
                with self._passes:
                    started = time.perf_counter()
                    outputs = self._model.step()
            except DeviceLostError:
                # The requests are not at fault, so other replicas may compute them.
                self._lose()
                return
            except Exception:
                log.exception("step failed")
                outputs = self._model.abandon("The model failed while it wrote this answer.")
            self._pulse.is_working = False
        self._has_stepped = True
        self._counters.busy_s += time.perf_counter() - started
        if outputs is None:
            return
        self._pulse.stepped()
        if outputs:
            batches = self._counters.batches
            # A sequence may have several outputs.
            batches.count(len({output.id for output in outputs}))
            batches.drafted, batches.accepted = self._model.speculated
            self._stepped(outputs)


def _move(model: LanguageModel, message: Sleep | Wake) -> Moved:
    try:
        if not isinstance(model, Sleeper):
            return Moved("its engine cannot sleep")
        if isinstance(message, Sleep):
            return Moved(held_bytes=model.sleep())
        model.wake_up()
    except Exception as error:
        log.exception("GPU memory could not be moved")
        return Moved(str(error) or type(error).__name__)
    return Moved()
