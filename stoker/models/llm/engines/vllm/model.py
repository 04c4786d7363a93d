"""Runs a language model on vLLM, in a child process with vLLM's own Python environment.

vLLM has its own loop and cache, and wants other versions of our libraries. What surrounds it
(templates, tools, stop strings, text) stays in the replica; tokens go down and come up.
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
from stoker.models.engines.interface import Progress
from stoker.models.llm.engines.memory import cache_bytes
from stoker.models.llm.engines.vllm.adapters import MAX_RANK, VllmAdapters
from stoker.models.llm.engines.vllm.channel import (
    Abort,
    Begin,
    Channel,
    FromChild,
    Load,
    Ready,
    Refused,
    Stepped,
    Submit,
)
from stoker.models.llm.interface import LanguageModel, Output, Submission
from stoker.wire.protocol import BYTECODE, Execution, OwnEnvironment, ReplicaSpec

log = logging.getLogger(__name__)

# The package's own modules, and nothing that lies beside them: the environment here is another one.
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


class ChildLostError(Exception):
    """The process that runs the model has ended."""


class Child:
    """The process that runs the model. `load` ends when it is ready."""

    def __init__(self, environment: OwnEnvironment, device: str, threads: int) -> None:
        """
        Args:
            device: a deployment's `device`.
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
        self.channel: Channel[FromChild] = Channel(ours, FromChild)

    def load(self, wanted: Load) -> Ready:
        """Raises `RuntimeError` with the reason where the model cannot be loaded."""
        self.channel.send(wanted)
        match self.channel.receive():
            case Ready() as ready:
                return ready
            case Refused(message):
                raise RuntimeError(message)
            case _:
                code = self.process.wait()
                raise RuntimeError(f"vLLM ended while it loaded the model (exit code {code}).")


class VllmEngine:
    """See `LanguageEngine`. It has a loop of its own, and finds out itself what may share it."""

    sharing = None
    convertible = False

    def __init__(self, spec: ReplicaSpec, progress: Progress) -> None:
        if spec.environment is None:
            raise ValueError("vLLM needs a Python environment of its own")
        self.adapters: VllmAdapters | None = None
        if spec.adapters:
            self.adapters = VllmAdapters(Path(spec.model_dir), Path(spec.adapters))
        progress(0.1, "starting vLLM")
        self._child = Child(spec.environment, spec.device, spec.threads)
        self._ready = self._child.load(
            Load(
                folder=spec.model_dir,
                device=spec.device.partition(":")[0],
                dtype=spec.dtype,
                cache_bytes=cache_bytes(spec.cache_bytes),
                gpu_share=spec.environment.gpu_share,
                adapters=spec.adapters,
                max_rank=MAX_RANK,
            )
        )
        self.max_length = self._ready.max_length
        self.vocabulary = self._ready.vocabulary

    def begin(self, ends: Iterable[int]) -> LanguageModel:
        return VllmModel(self._child, self._ready, ends)

    def prepare(self, execution: Execution) -> Callable[[], None]:
        """There is nothing better than what is loaded."""
        return lambda: None


class VllmModel:
    """See `LanguageModel`."""

    name = "vllm"

    def __init__(self, child: Child, ready: Ready, ends: Iterable[int]) -> None:
        """
        Args:
            ready: what the child has said of the model that it has loaded.
            ends: tokens by which the model ends its answer.
        """
        self.max_length = ready.max_length
        self.vocabulary = ready.vocabulary
        self.usage = 0.0
        self.alive = True
        self._channel = child.channel
        self._process = child.process
        self._running: set[int] = set()
        self._woken = False
        self._is_owed = False
        """Whether the child was told something that no step of it has followed yet."""
        self._steps: queue.SimpleQueue[list[Output] | None] = queue.SimpleQueue()
        """What the child has computed; None wakes whoever waits for it."""
        self._channel.send(Begin(ends=sorted(one for one in ends if one < ready.vocabulary)))
        threading.Thread(target=self._receive, name="vllm", daemon=True).start()

    def enter_thread(self) -> None: ...

    @property
    def speculated(self) -> tuple[int, int]:
        """It guesses nothing."""
        return 0, 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def at_work(self) -> bool:
        # Also while it has only been told to drop what it had: until then it may hang in that.
        return self.alive and (self._is_owed or bool(self._running))

    def submit(self, submission: Submission) -> None:
        self._running.add(submission.id)
        matcher = submission.matcher
        # `after` is left out: the same prompt's blocks are shared from the first step on.
        self._send(
            Submit(
                id=submission.id,
                prompt=list(submission.prompt),
                sampling=submission.sampling,
                grammar=matcher.grammar if matcher else "",
                after=matcher.after if matcher else None,
                plain=list(matcher.plain) if matcher else [],
                adapter=submission.adapter.name if submission.adapter else "",
            )
        )

    def cancel(self, identifier: int) -> None:
        if identifier in self._running:
            self._running.discard(identifier)
            self._send(Abort(identifier))

    def step(self) -> list[Output] | None:
        found = self._steps.get() if self.alive else None
        if not self.alive:
            raise ChildLostError("the process that runs vLLM has ended")
        if found is None:
            self._woken = False
            return None
        # Those of sequences that were cancelled meanwhile are nobody's.
        outputs = [one for one in found if one.id in self._running]
        self._running -= {one.id for one in outputs if one.finish or one.error}
        return outputs

    def wake(self) -> None:
        # One is enough: whoever is woken looks at all that is new.
        if not self._woken:
            self._woken = True
            self._steps.put(None)

    def abandon(self, why: str) -> list[Output]:
        outputs = [Output(one, [], [], error=why) for one in sorted(self._running)]
        for output in outputs:
            self.cancel(output.id)
        return outputs

    @property
    def children(self) -> list[int]:
        return [self._process.pid]

    def _send(self, message: Submit | Abort) -> None:
        self._is_owed = True
        try:
            self._channel.send(message)
        except OSError:
            # Its end is noticed where its messages are read.
            log.info("vLLM accepts no more messages")

    def _receive(self) -> None:
        """On a thread of its own: what the child says, to its end."""
        try:
            while (message := self._channel.receive()) is not None:
                if isinstance(message, Stepped):
                    self.usage = message.usage
                    self._is_owed = False
                    self._steps.put(message.outputs)
        except ValueError:
            log.exception("vLLM sent an invalid message")
            self._process.kill()
        log.error("vLLM exited with code %d", self._process.wait())
        self.alive = False
        self.usage = 0.0
        self._steps.put(None)


def _environment(environment: OwnEnvironment, device: str, threads: int) -> Mapping[str, str]:
    """What the child gets to know: no setting of ours, and nothing that reaches out."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_ENV or name.startswith(_KEPT_PREFIXES)
    }
    bytecode = Path(environment.cache_dir) / BYTECODE
    compiled = environment.compiled_dir or str(Path.home() / "vllm")
    _, _, index = device.partition(":")
    return (
        kept
        | ({"CUDA_VISIBLE_DEVICES": index} if index else {})
        # Importing vLLM takes three times as long without. No replica may write what others run.
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
            # The engine runs in the child itself: no further processes, no sockets between them.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # Plug-ins are other people's code that vLLM would import by itself.
            "VLLM_PLUGINS": "",
            # The runner whose processors of logits see every row before a token is drawn.
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            # The kernel shares out the cores; pinned, two models would share one.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
    )
