"""Checks of GPUs for `stoker doctor --gpu`."""

import os
import subprocess
import tempfile
from pathlib import Path

import msgspec

from stoker.base.config import Settings
from stoker.base.module_command import module_command
from stoker.cli.settings import read_settings
from stoker.cli.verdicts import DoctorCheck, DoctorVerdict
from stoker.client.errors import WrongUseError
from stoker.sandbox import gpu_places, identity
from stoker.wire.gpu_checks import GpuCheck, GpuQuestion
from stoker.wire.protocol import Cell

PROGRAM = "stoker.replica.gpu_checks"
TIMEOUT_S = 900.0
"""Timeout of all checks together. Each has a shorter one."""
PROBE_S = 120.0
"""Timeout for the import of vLLM."""
_SLEEPLESS = "Warm models on vLLM are unloaded if other models need their GPU."
_HINT = "Restart the driver, or the machine. A process that hangs in the driver cannot be ended."
_FAULT = "Run python -m stoker.replica.gpu_checks to see the error."


def is_expected() -> bool:
    """Returns True if the machine has an NVIDIA GPU or driver. `stoker doctor` then checks it."""
    return gpu_places.has_nvidia() or gpu_places.has_program()


def checks(program: str = PROGRAM) -> list[DoctorCheck]:
    """Runs the checks in another process. If they hang, returns the results up to then."""
    try:
        settings = read_settings()
    except WrongUseError:
        # `stoker doctor` reports it among the checks of the machine.
        return []
    with tempfile.TemporaryDirectory(prefix="stoker-doctor-") as folder:
        # A replica's user may enter its own folder below.
        Path(folder).chmod(0o711)
        cell = Cell(folder, _user(settings), str(settings.data_dir.resolve()))
        question = GpuQuestion(
            cell=cell,
            is_strict=settings.gpu_sandbox == "strict",
            memory_share=settings.gpu_memory_share,
        )
        return [*_answers(msgspec.json.encode(question), program), *sleep_checks(settings)]


def sleep_checks(settings: Settings) -> list[DoctorCheck]:
    """Checks if an installed vLLM can move models to main memory."""
    from stoker.models.engines import environments
    from stoker.models.llm.engines.vllm.recipe import SLEEP_PROBE

    environment = environments.installed(settings, "vllm")
    if environment is None:
        return []
    name = "GPU: sleep of vLLM"
    try:
        done = subprocess.run(  # noqa: S603 - the operator's interpreter
            [environment.python, "-c", SLEEP_PROBE],
            capture_output=True,
            timeout=PROBE_S,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        message = f"no result within {PROBE_S:.0f} s"
        return [DoctorCheck(name, DoctorVerdict.WARN, message, _SLEEPLESS)]
    if done.stdout.split()[-1:] == ["True"]:
        return [DoctorCheck(name, DoctorVerdict.OK, "supported")]
    lines = done.stderr.strip().splitlines() if done.returncode else []
    message = lines[-1] if lines else "not supported"
    return [DoctorCheck(name, DoctorVerdict.WARN, message, _SLEEPLESS)]


def _answers(question: bytes, program: str) -> list[DoctorCheck]:
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            module_command(program),
            input=question,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        message = f"no result within {TIMEOUT_S:.0f} s"
        hang = DoctorCheck("GPU: checks", DoctorVerdict.FAIL, message, _HINT)
        return [*_read(late.output or b""), hang]
    results = _read(done.stdout)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        message = lines[-1] if lines else f"ended with status {done.returncode}"
        results.append(DoctorCheck("GPU: checks", DoctorVerdict.FAIL, message, _FAULT))
    return results


def _read(output: bytes) -> list[DoctorCheck]:
    lines = [msgspec.json.decode(line, type=GpuCheck) for line in output.splitlines() if line]
    return [
        DoctorCheck(line.name, DoctorVerdict(line.status), line.found, line.hint) for line in lines
    ]


def _user(settings: Settings) -> int | None:
    """Returns the user that replicas run as, if the server runs as root."""
    users = settings.replica_users
    if os.geteuid() != 0 or not users or not identity.is_mapped(users[0], users[-1]):
        return None
    return users[0]
