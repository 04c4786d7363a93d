"""`python -m stoker.replica.gpu_checks`: checks the GPUs of this machine for `stoker doctor`.

It reads a `GpuQuestion` in JSON from standard input, and prints one `GpuCheck` per line. Each use
of CUDA is a forked child with a timeout, because a driver may hang. Children have torch imported,
like the replicas that the engine host forks.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from stoker import sandbox
from stoker.base.device_budget import device_budget
from stoker.base.module_command import module_command
from stoker.replica import gpu_attempts, gpu_facts, gpu_walls
from stoker.replica.cuda_guard import CudaGuard, has_cuda_build
from stoker.sandbox.attempt import Attempt, AttemptResult, outcome_of
from stoker.sandbox.diagnosis import PUT_UP, Diagnosing
from stoker.wire.gpu_checks import GpuCheck, GpuQuestion
from stoker.wire.gpu_walls import GpuWalls
from stoker.wire.host_messages import HostEvent, HostReady

TORCH_S = 90.0
"""Timeout in seconds of an attempt with torch, which loads its libraries for the device."""
_HOST_S = 300.0
_RUN = "Run `stoker doctor --gpu` again on a machine whose driver lists a device."
_NOT_RUN = (
    "context in a fork, context behind each wall, matrix multiplication, context memory, "
    "checkpoint and restore, MPS"
)
_IGNORED_MIB, _SHOWN = 256, 3
GUARD = CudaGuard()
_HOST_HINT = "Install stoker with its dependencies."
_CUDA_HINT = "Install a build of torch for CUDA (docs/containers.md: TORCH=cuda)."


def checks(question: GpuQuestion) -> Iterator[GpuCheck]:
    """Yields the results, the cheap and basic ones first."""
    devices = gpu_facts.list_gpus()
    has_device = bool(devices.names)
    yield _devices(devices)
    if has_device or gpu_facts.has_driver():
        yield _files()
        yield _driver(devices)
    if memories := gpu_facts.memories():
        yield memory_check(memories, gpu_facts.processes(), question.memory_share)
    yield _torch(has_device=has_device)
    if has_cuda_build():
        yield _host()
        # As in the engine host, imports in this process must not initialise CUDA.
        GUARD.install()
    if not has_device:
        yield GpuCheck("GPU: not checked", "warn", _NOT_RUN, _RUN)
        return
    yield from _on_device(question)


def _on_device(question: GpuQuestion) -> Iterator[GpuCheck]:
    if has_cuda_build():
        yield _capabilities()
        yield _fork()
    diagnosing = gpu_walls.diagnosing(question.cell)
    yield from (_wall(diagnosing, wall) for wall in PUT_UP)
    walls = gpu_walls.look(diagnosing)
    yield all_walls(walls, is_strict=question.is_strict)
    opened = replace(diagnosing.walls, openings=walls.openings)
    if has_cuda_build():
        yield _product(opened)
        yield _context()
        yield from _checkpoints(opened)
    yield _mps(question)


def _devices(devices: gpu_facts.GpuListing) -> GpuCheck:
    if devices.names:
        return GpuCheck("GPU", "ok", "; ".join(devices.names))
    if devices.problem:
        return GpuCheck("GPU", "fail", devices.problem, "Restart the driver, or the machine.")
    if gpu_facts.has_driver():
        hint = "Install nvidia-smi of the driver: Stoker counts devices and their memory with it."
        return GpuCheck("GPU", "fail", "the driver lists no device", hint)
    hint = (
        "Install NVIDIA's driver. In a container, add the devices: --gpus all (Docker), "
        "--device nvidia.com/gpu=all (Podman)."
    )
    return GpuCheck("GPU", "warn", "no driver lists a device", hint)


def _files() -> GpuCheck:
    missing, is_fatal = gpu_facts.missing_devices()
    if missing:
        hint = (
            "Run nvidia-modprobe -u -c=0 as root, outside of the container. "
            "Replicas cannot create devices."
        )
        status = "fail" if is_fatal else "warn"
        return GpuCheck("GPU: device files", status, f"missing: {', '.join(missing)}", hint)
    return GpuCheck("GPU: device files", "ok", "present")


def _driver(devices: gpu_facts.GpuListing) -> GpuCheck:
    driver = devices.driver or "unknown version"
    outcome = outcome_of(gpu_attempts.version, gpu_walls.ATTEMPT_S)
    if outcome.has_returned:
        return GpuCheck("GPU: driver", "ok", f"{driver}, for CUDA {outcome.text} and earlier")
    hint = "Install the driver's library libcuda.so.1, and let LD_LIBRARY_PATH name its folder."
    return GpuCheck("GPU: driver", "fail", outcome.text, hint)


def memory_check(
    memories: Sequence[gpu_facts.GpuMemory],
    processes: Sequence[gpu_facts.GpuProcess],
    share: float,
) -> GpuCheck:
    """Returns how much memory is in use, by which processes, and how much replicas may use."""
    name = "GPU: memory"
    message = "; ".join(
        f"{each.used:,} of {each.total:,} MiB in use, so that replicas may use "
        f"{device_budget(each.total, each.used, share):,} MiB"
        for each in memories
    )
    if all(each.used < _IGNORED_MIB for each in memories):
        return GpuCheck(name, "ok", message)
    if processes:
        message += f". In use by {', '.join(map(_described, processes[:_SHOWN]))}"
    hint = (
        "Memory of other processes is subtracted from the server's budget. If another server uses "
        "this GPU, give each a part of it with STOKER_GPU_MEMORY_SHARE, such as 0.45. Replicas of "
        "this server are listed as well if it runs."
    )
    return GpuCheck(name, "warn", message, hint)


def _described(process: gpu_facts.GpuProcess) -> str:
    name = process.name.rpartition("/")[2] or "?"
    return f"{name} (process {process.pid}, {process.held_mib:,} MiB)"


def _torch(*, has_device: bool) -> GpuCheck:
    import torch as _torch

    torch: Any = _torch
    if has_cuda_build():
        built = " ".join(_built_for()) or "its own kernels"
        return GpuCheck("GPU: torch", "ok", f"{torch.__version__}, for {built}")
    message = f"{torch.__version__}, without CUDA"
    return GpuCheck("GPU: torch", "fail" if has_device else "warn", message, _CUDA_HINT)


def _capabilities() -> GpuCheck:
    """Checks that torch was built for the devices: for the same major version, or with PTX."""
    name = "GPU: torch's kernels"
    outcome = outcome_of(gpu_attempts.capabilities, gpu_walls.ATTEMPT_S)
    if not outcome.has_returned:
        return GpuCheck(name, "fail", outcome.text, "See `GPU: behind all walls`.")
    built = _built_for()
    missing = [number for number in outcome.text.split() if not is_built_for(number, built)]
    if missing:
        message = f"none for compute capability {', '.join(missing)}"
        return GpuCheck(name, "fail", message, "Install a build of torch for this device.")
    return GpuCheck(name, "ok", f"for compute capability {outcome.text}")


def _built_for() -> list[str]:
    """Returns the compute capabilities that torch was built for."""
    return outcome_of(gpu_attempts.built_for, TORCH_S).text.split()


def is_built_for(capability: str, built: list[str]) -> bool:
    """Returns True if kernels of torch run on a device.

    Args:
        capability: compute capability, as in `9.0`.
        built: list of torch, as in `sm_90`, `sm_90a` and `compute_90`.
    """
    major, minor = map(int, capability.split("."))
    for name in built:
        kind, _, number = name.partition("_")
        digits = "".join(filter(str.isdigit, number))
        if len(digits) < 2:
            continue
        of_major, of_minor = int(digits[:-1]), int(digits[-1])
        is_exact_only = number != digits and (of_major, of_minor) != (major, minor)
        if is_exact_only or (of_major, of_minor) > (major, minor):
            continue
        # Binary kernels run on later devices of the same major version; PTX on all later ones.
        if kind == "compute" or of_major == major:
            return True
    return False


def _host() -> GpuCheck:
    """Starts an engine host, which reports whether its forks could use CUDA, and ends."""
    name = "GPU: engine host"
    try:
        process = subprocess.run(  # noqa: S603 - our own module
            module_command("stoker.replica.host"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_HOST_S,
            check=False,
        )
        events = [
            msgspec.json.decode(line, type=HostEvent)
            for line in process.stdout.split(b"\n")
            if line
        ]
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        return GpuCheck(name, "fail", f"does not start: {error}", _HOST_HINT)
    ready = next((event for event in events if isinstance(event, HostReady)), None)
    if ready is None:
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        return GpuCheck(name, "fail", lines[-1] if lines else "does not start", _HOST_HINT)
    if ready.cuda_problem:
        hint = "Replicas on GPUs are fresh processes, which start ten seconds later."
        return GpuCheck(name, "warn", ready.cuda_problem, hint)
    return GpuCheck(name, "ok", "CUDA is not initialised, so forks can use it")


def _fork() -> GpuCheck:
    return _tried(
        "GPU: context in a fork",
        outcome_of(_unguarded(gpu_attempts.fork_problem), TORCH_S),
        "torch's message names the cause. Compare the driver's CUDA version with torch's.",
    )


def _wall(diagnosing: Diagnosing, wall: sandbox.Wall) -> GpuCheck:
    problem = diagnosing.problem_behind(wall)
    name = f"GPU: behind the wall '{wall}'"
    if not problem:
        return GpuCheck(name, "ok", "CUDA starts")
    return GpuCheck(name, "warn", problem, "See `GPU: behind all walls`.")


def all_walls(walls: GpuWalls, *, is_strict: bool) -> GpuCheck:
    """Returns the result for all walls together."""
    name = "GPU: behind all walls"
    if not walls.problem:
        return GpuCheck(name, "ok", "CUDA starts")
    if walls.bare_problem:
        hint = "The walls are not the cause: CUDA does not start without them either."
        return GpuCheck(name, "fail", walls.bare_problem, hint)
    if not walls.openings:
        hint = "CUDA starts only in a process that is not confined at all. Report this."
        return GpuCheck(name, "fail", walls.problem, hint)
    if is_strict:
        hint = f"STOKER_GPU_SANDBOX=strict forbids an exception: {walls.message}."
        return GpuCheck(name, "fail", walls.problem, hint)
    if not walls.can_be_opened:
        hint = f"Several walls would have to be left out: {walls.message}."
        return GpuCheck(name, "fail", walls.problem, hint)
    hint = f"Replicas on a GPU run with an exception: {walls.message}."
    return GpuCheck(name, "warn", walls.problem, hint)


def _product(walls: sandbox.Walls) -> GpuCheck:
    return _tried(
        "GPU: matrix multiplication",
        outcome_of(_unguarded(gpu_attempts.torch_problem), TORCH_S, walls),
        "Do not serve on this device: its results are wrong, or torch cannot use it.",
        "equal to the CPU's",
    )


def _context() -> GpuCheck:
    name = "GPU: context memory"
    outcome = outcome_of(_unguarded(gpu_attempts.context_mib), TORCH_S)
    if outcome.has_returned and outcome.text.isdecimal():
        return GpuCheck(name, "ok", f"{outcome.text} MiB for each replica")
    return GpuCheck(name, "warn", outcome.text, "The memory of the device could not be measured.")


def _checkpoints(walls: sandbox.Walls) -> Iterator[GpuCheck]:
    hint = "Idle replicas are unloaded from this device instead of moved to main memory."
    names = {"GPU: checkpoint": None, "GPU: checkpoint of a confined process": walls}
    for name, around in names.items():
        attempt = _unguarded(lambda around=around: gpu_attempts.checkpoint_report(around))
        outcome = outcome_of(attempt, TORCH_S)
        if outcome.has_returned:
            saved, restored = outcome.text.split()
            message = f"works: {saved} s to save 64 MiB, {restored} s to restore"
            yield GpuCheck(name, "ok", message)
        else:
            yield GpuCheck(name, "warn", outcome.text, hint)


def _mps(question: GpuQuestion) -> GpuCheck:
    pid = gpu_facts.mps_process()
    if pid is None:
        return GpuCheck("GPU: MPS", "ok", "does not run")
    message = f"runs, process {pid}"
    if question.cell.user is None:
        return GpuCheck("GPU: MPS", "ok", message)
    hint = (
        "It serves one user at a time, and each replica has its own. Serve as a plain user, "
        "or start the control daemon with -multiuser-server."
    )
    return GpuCheck("GPU: MPS", "warn", message, hint)


def _tried(name: str, outcome: AttemptResult, hint: str, success: str = "works") -> GpuCheck:
    if outcome.has_returned and not outcome.text:
        return GpuCheck(name, "ok", success)
    return GpuCheck(name, "fail", outcome.text, hint)


def _unguarded(attempt: Attempt) -> Attempt:
    """Returns the attempt for a fork of this process, which may use CUDA."""

    def run() -> str:
        GUARD.remove()
        return attempt()

    return run


def main() -> None:
    sandbox.die_with_parent()
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=GpuQuestion)
    # Libraries may print to standard output.
    output = os.dup(1)
    os.dup2(2, 1)
    for check in checks(question):
        os.write(output, msgspec.json.encode(check) + b"\n")


if __name__ == "__main__":
    main()
