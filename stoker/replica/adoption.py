"""A converted model on its way to the thread that runs the model."""

import logging
from collections.abc import Callable

from stoker.replica.named_thread import NamedThread
from stoker.wire.protocol import Execution

log = logging.getLogger(__name__)

Prepare = Callable[[Execution], Callable[[], None]]
"""See `Engine.prepare`."""


class Adoption:
    """Has a converted model made ready beside the passes, and holds it until there is none."""

    def __init__(
        self,
        prepare: Prepare | None,
        wake: Callable[[], None],
        ended: Callable[[bool], None],
    ) -> None:
        """
        Args:
            prepare: None: the model stays as it is.
            wake: has the model's thread look whether something is pending, from any thread.
            ended: is told whether what was offered was taken.
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
        """Have it made ready. Once: nothing else is offered before that has ended."""
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

        # What it starts goes on to compute for the engine.
        NamedThread("engine", work).start()

    def adopt(self) -> None:
        """On the model's thread: take over what is pending."""
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
