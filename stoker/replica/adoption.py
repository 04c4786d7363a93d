"""Hands a converted model over to the thread that runs the model."""

import logging
from collections.abc import Callable

from stoker.replica.named_thread import NamedThread
from stoker.wire.protocol import Execution

log = logging.getLogger(__name__)

Prepare = Callable[[Execution], Callable[[], None]]
"""See `Engine.prepare`."""


class Adoption:
    """Prepares a converted model while passes run. Holds it until no pass runs."""

    def __init__(
        self,
        prepare: Prepare | None,
        wake: Callable[[], None],
        ended: Callable[[bool], None],
    ) -> None:
        """
        Args:
            prepare: prepares a converted model. None: the model stays as it is.
            wake: makes the model's thread check for a pending model. Callable from any thread.
            ended: receives True if the offered model was adopted.
        """
        self._prepare = prepare
        self._wake = wake
        self._ended = ended
        self._take_over: Callable[[], None] | None = None
        self.is_preparing = False

    @property
    def pending(self) -> bool:
        return self._take_over is not None

    def offer(self, execution: Execution) -> None:
        """Starts to prepare the model. No other model may be offered before this offer has
        ended.
        """
        prepare = self._prepare
        if prepare is None:
            self._ended(False)
            return
        self.is_preparing = True

        def work() -> None:
            try:
                self._take_over = prepare(execution)
            except Exception:
                log.exception("converted model could not be prepared; continuing without it")
                self._ended(False)
            self.is_preparing = False
            self._wake()

        # Threads started here go on to compute for the engine.
        NamedThread("engine", work).start()

    def adopt(self) -> None:
        """Takes over the pending model. Runs on the model's thread."""
        take_over, self._take_over = self._take_over, None
        if take_over is None:
            return
        try:
            take_over()
        except Exception:
            log.exception("converted model could not be adopted; continuing without it")
            self._ended(False)
        else:
            self._ended(True)
