"""A converted model on its way to the thread that runs the model."""

import logging
from collections.abc import Callable

from stoker.wire.protocol import Execution

log = logging.getLogger(__name__)


class Adoption:
    """Holds a converted model until the model's thread is between two passes."""

    def __init__(self, adopt: Callable[[Execution], None] | None) -> None:
        """
        Args:
            adopt: has the model go on as it was converted, on its thread; None: it cannot.
        """
        self._adopt = adopt
        self._execution: Execution | None = None

    @property
    def pending(self) -> bool:
        return self._execution is not None

    def offer(self, execution: Execution) -> None:
        """From any thread; the last one that was offered counts."""
        self._execution = execution

    def adopt(self) -> bool:
        """On the model's thread: take what was offered; whether the model goes on with it."""
        execution, self._execution = self._execution, None
        if execution is None or self._adopt is None:
            return False
        try:
            self._adopt(execution)
        except Exception:
            log.exception("the converted model could not be taken; going on without it")
            return False
        return True
