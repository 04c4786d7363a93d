"""Runs a language model on vLLM, in a child process with vLLM's own Python environment.

vLLM has its own loop and cache, and needs other versions of Stoker's libraries. The replica handles
templates, tools, stop strings and text. Only tokens pass between the two processes.
"""

import logging
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import stoker
from stoker.base.fairness import Tier
from stoker.models.engines.interface import Progress
from stoker.models.llm.engines.memory import cache_bytes
from stoker.models.llm.engines.vllm.adapters import MAX_RANK, VllmAdapters
from stoker.models.llm.engines.vllm.channel import (
    Abort,
    Begin,
    ChildChannel,
    FromChild,
    LoadModel,
    LoadRefused,
    Ready,
    Stepped,
    Submit,
)
from stoker.models.llm.engines.vllm.processes import descendants
from stoker.models.llm.interface import LanguageModel, Output, Submission
from stoker.wire.notices import Notice
from stoker.wire.protocol import BYTECODE, Execution, OwnEnvironment, ReplicaSpec
from stoker.wire.sleep import Moved, Sleep, Wake

log = logging.getLogger(__name__)

# Imports only the package's own modules and no installed ones next to them, because this
# environment is a different one.
_START = """\
import runpy, sys, types
package = sys.modules["stoker"] = types.ModuleType("stoker")
package.__path__ = [sys.argv[1]]
runpy.run_module("stoker.models.llm.engines.vllm.child", run_name="__main__")
"""
_KEPT_ENV = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH"),
    *("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"),
)
_KEPT_PREFIXES = ("CUDA_", "NVIDIA_")
_SLEEPLESS = Notice(
    "no_sleep",
    "The installed vLLM cannot move the model to main memory. If another model needs the GPU, this "
    "model is unloaded, and the next request loads it again.",
)


_PRIORITIES = {Tier.PRIORITY: -1, Tier.DEFAULT: 0, Tier.FLEX: 1}
"""Priorities of vLLM's scheduler. It admits lower ones first and preempts higher ones first."""


class ChildLostError(Exception):
    """Raised if the process that runs the model has ended."""


class ModelProcess:
    """Process that runs the model. `load` returns when it is ready."""

    def __init__(self, environment: OwnEnvironment, device: str, threads: int) -> None:
        """
        Args:
            device: `device` of the deployment.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - the operator's interpreter, our code
                [
                    *(environment.python, "-s", "-P", "-c", _START),
                    *(str(Path(stoker.__file__).parent), str(theirs.fileno()), str(os.getpid())),
                ],
                env=_environment(environment, device, threads),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self.channel: ChildChannel[FromChild] = ChildChannel(ours, FromChild)

    def load(self, wanted: LoadModel) -> Ready:
        """Loads the model. Raises `RuntimeError` with the reason if that fails."""
        self.channel.send(wanted)
        match self.channel.receive():
            case Ready() as ready:
                return ready
            case LoadRefused(message):
                raise RuntimeError(message)
            case _:
                code = self.process.wait()
                raise RuntimeError(f"vLLM ended while it loaded the model (exit code {code}).")


class VllmEngine:
    """Implements `LanguageEngine` on vLLM, which has its own loop and decides itself what sequences
    share.
    """

    sharing = None
    convertible = False

    def __init__(self, spec: ReplicaSpec, progress: Progress) -> None:
        if spec.environment is None:
            raise ValueError("vLLM needs a separate Python environment")
        self.adapters: VllmAdapters | None = None
        if spec.adapters:
            self.adapters = VllmAdapters(Path(spec.model_dir), Path(spec.adapters))
        progress(0.1, "starting vLLM")
        self._child = ModelProcess(spec.environment, spec.device, spec.threads)
        self._ready = self._child.load(
            LoadModel(
                folder=spec.model_dir,
                device=spec.device.partition(":")[0],
                dtype=spec.dtype,
                cache_bytes=cache_bytes(spec.cache_bytes),
                gpu_share=spec.environment.gpu_share,
                adapters=spec.adapters,
                max_rank=MAX_RANK,
                devices=spec.options.get("devices") or 1,
                quantization=spec.options.get("quantization") or "",
                kv_cache_dtype=spec.options.get("kv_cache_dtype") or "auto",
                sleeps=spec.sleeps,
            )
        )
        is_sleepless = spec.sleeps and self._ready.sleep_bytes is None
        self.notices = [_SLEEPLESS] if is_sleepless else []
        self.max_length = self._ready.max_length
        self.vocabulary = self._ready.vocabulary

    def begin(self, ends: Iterable[int]) -> LanguageModel:
        return VllmModel(self._child, self._ready, ends)

    def prepare(self, execution: Execution) -> Callable[[], None]:
        """Does nothing: vLLM's models have no conversion."""
        return lambda: None


class VllmModel:
    """Implements `LanguageModel` on vLLM."""

    name = "vllm"

    def __init__(self, child: ModelProcess, ready: Ready, ends: Iterable[int]) -> None:
        """
        Args:
            ready: the child's report about the loaded model.
            ends: tokens by which the model ends its answer.
        """
        self.max_length = ready.max_length
        self.vocabulary = ready.vocabulary
        self.sleep_bytes = ready.sleep_bytes
        self.usage = 0.0
        self.alive = True
        self._channel = child.channel
        self._process = child.process
        self._running: set[int] = set()
        self._woken = False
        self._is_owed = False
        """True if a message was sent to the child and no step has followed yet."""
        self._steps: queue.SimpleQueue[list[Output] | None] = queue.SimpleQueue()
        """Outputs of the child's steps. None wakes a waiting reader."""
        self._moves: queue.SimpleQueue[Moved | None] = queue.SimpleQueue()
        """Answers to `Sleep` and `Wake`. None if the child has ended."""
        self._channel.send(Begin(ends=sorted(end for end in ends if end < ready.vocabulary)))
        threading.Thread(target=self._receive, name="vllm", daemon=True).start()

    def enter_thread(self) -> None: ...

    @property
    def speculated(self) -> tuple[int, int]:
        """Returns zeros, because this model does not speculate."""
        return 0, 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def at_work(self) -> bool:
        # Also true after an abort until the next step, because the child may hang in it.
        return self.alive and (self._is_owed or bool(self._running))

    def submit(self, submission: Submission) -> None:
        self._running.add(submission.id)
        matcher = submission.matcher
        # `after` is omitted: vLLM shares the same prompt's blocks from the first step on.
        self._send(
            Submit(
                id=submission.id,
                prompt=list(submission.prompt),
                sampling=submission.sampling,
                grammar=matcher.grammar if matcher else "",
                after=matcher.after if matcher else None,
                plain=list(matcher.plain) if matcher else [],
                adapter=submission.adapter.name if submission.adapter else "",
                priority=_PRIORITIES[submission.tier],
            )
        )

    def cancel(self, identifier: int) -> None:
        if identifier in self._running:
            self._running.discard(identifier)
            self._send(Abort(identifier))

    def step(self) -> list[Output] | None:
        step_outputs = self._steps.get() if self.alive else None
        if not self.alive:
            raise ChildLostError("the process that runs vLLM has ended")
        if step_outputs is None:
            self._woken = False
            return None
        # Drops the outputs of sequences that were cancelled meanwhile.
        outputs = [output for output in step_outputs if output.id in self._running]
        self._running -= {output.id for output in outputs if output.finish or output.error}
        return outputs

    def wake(self) -> None:
        # A single wake-up is enough, because the reader then handles all news.
        if not self._woken:
            self._woken = True
            self._steps.put(None)

    def abandon(self, why: str) -> list[Output]:
        outputs = [Output(identifier, [], [], error=why) for identifier in sorted(self._running)]
        for output in outputs:
            self.cancel(output.id)
        return outputs

    def sleep(self) -> int:
        """Moves the weights to main memory and frees the cache. Returns `Moved.held_bytes`. No
        sequence may run.

        Raises `ChildLostError`, and `RuntimeError` if they could not be moved. The child must be
        ended then.
        """
        return self._move(Sleep()).held_bytes

    def wake_up(self) -> None:
        """Moves the weights back to the GPU. Raises as `sleep`."""
        self._move(Wake())

    @property
    def children(self) -> list[int]:
        return [self._process.pid, *descendants(self._process.pid)]

    def _move(self, message: Sleep | Wake) -> Moved:
        self._send(message)
        moved = self._moves.get()
        if moved is None:
            raise ChildLostError("the process that runs vLLM has ended")
        if moved.error:
            raise RuntimeError(moved.error)
        return moved

    def _send(self, message: Submit | Abort | Sleep | Wake) -> None:
        self._is_owed = True
        try:
            self._channel.send(message)
        except OSError:
            # The thread that reads the child's messages detects its end.
            log.info("vLLM accepts no more messages")

    def _receive(self) -> None:
        """Reads the child's messages until the end. Runs on a separate thread."""
        try:
            while (message := self._channel.receive()) is not None:
                if isinstance(message, Stepped):
                    self.usage = message.usage
                    self._is_owed = False
                    self._steps.put(message.outputs)
                elif isinstance(message, Moved):
                    self._moves.put(message)
        except ValueError:
            log.exception("vLLM sent an invalid message")
            self._process.kill()
        log.error("vLLM exited with code %d", self._process.wait())
        self.alive = False
        self.usage = 0.0
        self._steps.put(None)
        self._moves.put(None)


def _environment(environment: OwnEnvironment, device: str, threads: int) -> Mapping[str, str]:
    """Returns the child's environment variables: no settings of Stoker, and no network access."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_ENV or name.startswith(_KEPT_PREFIXES)
    }
    bytecode = Path(environment.cache_dir) / BYTECODE
    compiled = environment.compiled_dir or str(Path.home() / "vllm")
    _, _, index = device.partition(":")
    return (
        inherited
        | ({"CUDA_VISIBLE_DEVICES": index} if index else {})
        # Without the bytecode, the import of vLLM takes three times as long. No replica may write
        # files that others execute.
        | ({"PYTHONPYCACHEPREFIX": str(bytecode)} if bytecode.is_dir() else {})
        | {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_CACHE_ROOT": compiled,
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            # The engine runs in the child itself, without further processes or sockets between
            # them.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # Plug-ins are third-party code that vLLM would import automatically.
            "VLLM_PLUGINS": "",
            # Selects the runner with logits processors that see every row before a token is drawn.
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            # The kernel distributes the cores. With pinning, two models could share one core.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
    )
