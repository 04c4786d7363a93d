"""Runs `nvidia-smi` with a timeout.

This process does not load NVML. If the driver hangs, only `nvidia-smi` hangs.
"""

import logging
import shutil
import subprocess
import threading
from collections.abc import Sequence

from stoker.sandbox.gpu_places import PROGRAM

log = logging.getLogger(__name__)


class DriverProgram:
    """Runs `nvidia-smi`, and stores why its last run gave no output."""

    def __init__(self) -> None:
        self._hung: subprocess.Popen[str] | None = None
        self.problem = ""
        """Reason that the driver does not answer, as a sentence. Empty if it answers or is not
        installed.
        """

    def run(self, arguments: Sequence[str], timeout_s: float) -> str | None:
        """Returns the program's output. None if it is not installed, hangs or cannot be run.

        If the driver hangs, its programs block in the kernel and cannot be killed. Such a process
        is left behind, and no other one is started before it has ended.
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
            # Reaps the process in another thread, because it may never end.
            threading.Thread(target=process.communicate, daemon=True).start()
            return None
        self.problem = ""
        # The output is usable even if the program failed on one broken device.
        return output

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            log.error("GPU driver does not answer", extra={"why": problem})
        self.problem = problem
