"""Runs the driver's own program `nvidia-smi`, and never waits for it longer than a timeout.

The driver's library is not loaded into this process, because a driver that hangs then blocks only
the program.
"""

import logging
import shutil
import subprocess
import threading
from collections.abc import Sequence

from stoker.sandbox.gpu_places import PROGRAM

log = logging.getLogger(__name__)


class DriverProgram:
    """The program, with the reason that its last run gave no output."""

    def __init__(self) -> None:
        self._hung: subprocess.Popen[str] | None = None
        self.problem = ""
        """Reason that the driver gives no answer, in words. Empty if it answers, or if the machine
        has no driver.
        """

    def run(self, arguments: Sequence[str], timeout_s: float) -> str | None:
        """Returns the program's output. None if it does not exist, hangs or cannot be run.

        A process that cannot be killed is left behind, and no other is started before it has ended:
        a driver that hangs blocks its programs in the kernel.
        """
        program = shutil.which(PROGRAM)
        if program is None:
            self.problem = ""
            return None
        if self._hung is not None and self._hung.poll() is None:
            return None
        self._hung = None
        try:
            process = subprocess.Popen(  # noqa: S603 - the driver's own program, words of ours
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except OSError as error:
            self._fail(f"{PROGRAM} cannot be run: {error}.")
            return None
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._hung = process
            self._fail(f"{PROGRAM} did not answer within {timeout_s:g} s: the driver hangs.")
            process.kill()
            # Waits for the end elsewhere, because it may never come.
            threading.Thread(target=process.communicate, daemon=True).start()
            return None
        self.problem = ""
        # Use the output even if the program failed on one broken device.
        return output

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            log.error("GPU driver does not answer", extra={"why": problem})
        self.problem = problem
