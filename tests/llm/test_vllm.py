"""vLLM in a child process: the protocol between both, and the real vLLM if it is installed.

The real vLLM runs in the interpreter that STOKER_VLLM_PYTHON names. `make test-vllm` provides it.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch

from stoker.models.chat.forms.grammar import Grammars, json_grammar
from stoker.models.chat.prompts.prompts import Prompts
from stoker.models.llm.engines.torch import TorchRunner, load
from stoker.models.llm.engines.vllm import form_masks, sleep
from stoker.models.llm.engines.vllm.channel import (
    MAX_BYTES,
    Abort,
    Begin,
    ChildChannel,
    FromChild,
    LoadModel,
    LoadRefused,
    Ready,
    Stepped,
    Submit,
    ToChild,
)
from stoker.models.llm.engines.vllm.child import _moved, _submitted
from stoker.models.llm.engines.vllm.engine import (
    ChildEngine,
    EngineSequence,
    FormsUnsupportedError,
    _on_cpu,
    _on_gpu,
    _with_forms,
)
from stoker.models.llm.engines.vllm.model import ChildLostError, ModelProcess, VllmModel
from stoker.models.llm.engines.vllm.processes import descendants
from stoker.models.llm.errors import FormError
from stoker.models.llm.interface import Logprob, Output
from stoker.models.llm.sampling import NOTHING
from stoker.models.llm.scheduler import Scheduler
from stoker.replica.language_worker import LanguageWorker
from stoker.wire.flight import FlightRecord
from stoker.wire.generation_request import Generation, Sampling
from stoker.wire.protocol import Generate, OwnEnvironment
from stoker.wire.sleep import Moved, Sleep, Wake
from tests.llm.support import GREEDY, VOCABULARY, generated, submission, tiny_llama, tokenizer

LOAD = LoadModel(folder="/m", device="auto", dtype="auto", cache_bytes=1 << 40, gpu_share=0.5)
STEPPED = Stepped(
    [
        Output(
            7, [1, 2], [Logprob(1, -0.5, [(1, -0.5), (3, -2.0)]), Logprob(2, -9.0, [])], None, 32
        ),
        Output(8, [], [], "stop"),
        Output(9, [], [], error="no", form=True),
    ],
    0.25,
)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


class TestChannel:
    @pytest.mark.parametrize(
        "message",
        [
            LOAD,
            Begin(ends=[2, 3]),
            Submit(id=1 << 40, prompt=[0, 5], sampling=GREEDY),
            Submit(
                id=2,
                prompt=list(range(100_000)),
                sampling=Sampling(seed=-(2**63), logit_bias={3: -100.0}, logprobs=0),
                grammar='{"grammars": []}',
                after=0,
            ),
            Abort(3),
            Sleep(),
            Wake(),
        ],
    )
    def test_to_the_child(self, ends: Any, message: ToChild) -> None:
        self._passes(ends, message, ToChild)

    @pytest.mark.parametrize(
        "message",
        [Ready(max_length=320, vocabulary=400), LoadRefused("why"), STEPPED, Moved(), Moved("why")],
    )
    def test_from_the_child(self, ends: Any, message: FromChild) -> None:
        self._passes(ends, message, FromChild)

    def _passes(self, ends: Any, message: Any, kind: Any) -> None:
        sender, receiver = ChildChannel[Any](ends[0], kind), ChildChannel[Any](ends[1], kind)
        # More than the kernel buffers, so it has to be sent while it is read.
        thread = threading.Thread(target=sender.send, args=[message])
        thread.start()
        received = receiver.receive()
        thread.join()
        assert type(received) is type(message)
        assert received == message

    def test_one_byte_at_a_time(self, ends: Any) -> None:
        content = msgspec.msgpack.encode(Abort(3))
        frame = len(content).to_bytes(4, "little") + content
        channel = ChildChannel[Any](ends[1], ToChild)

        def drip() -> None:
            for byte in frame * 3:
                ends[0].sendall(bytes([byte]))

        threading.Thread(target=drip).start()
        assert [channel.receive() for _ in range(3)] == [Abort(3)] * 3

    @pytest.mark.parametrize("cut", [b"", b"\5\0", b"\5\0\0\0ab"])
    def test_the_end_in_any_place(self, ends: Any, cut: bytes) -> None:
        ends[0].sendall(cut)
        ends[0].close()
        assert ChildChannel[Any](ends[1], ToChild).receive() is None

    @pytest.mark.parametrize(
        "frame",
        [
            (MAX_BYTES + 1).to_bytes(4, "little"),
            b"\1\0\0\0\xc1",
            b"\1\0\0\0\x01",
            # A valid message, but of the other direction.
            len(msgspec.msgpack.encode(STEPPED)).to_bytes(4, "little")
            + msgspec.msgpack.encode(STEPPED),
        ],
    )
    def test_what_is_no_message(self, ends: Any, frame: bytes) -> None:
        ends[0].sendall(frame)
        with pytest.raises(ValueError):
            ChildChannel[Any](ends[1], ToChild).receive()


class Peer:
    """The child's end of the channel under the test's control, and a process that can end."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        self.channel: ChildChannel[ToChild] = ChildChannel(self.socket, ToChild)
        self.process = subprocess.Popen(["sleep", "60"])
        child: Any = SimpleNamespace(channel=ChildChannel[FromChild](ours, FromChild), process=self)
        self.model = VllmModel(child, Ready(max_length=64, vocabulary=50), {2, 3, 99})
        assert self.channel.receive() == Begin(ends=[2, 3])

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> int:
        return self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.socket.shutdown(socket.SHUT_RDWR)

    def says(self, *outputs: Output, usage: float = 0.5) -> None:
        self.channel.send(Stepped([*outputs], usage))

    def until(self, condition: Any) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.002)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.kill()


class TestModel:
    def test_what_is_submitted(self, peer: Peer) -> None:
        form: Any = SimpleNamespace(grammar="{}", after=4, plain=())
        peer.model.submit(submission(1, [5, 6], matcher=form))
        peer.model.submit(submission(2, [7], after=1))
        assert peer.channel.receive() == Submit(
            id=1, prompt=[5, 6], sampling=GREEDY, grammar="{}", after=4
        )
        assert peer.channel.receive() == Submit(id=2, prompt=[7], sampling=GREEDY)
        assert peer.model.running == 2

    def test_steps(self, peer: Peer) -> None:
        for number in (1, 2, 3):
            peer.model.submit(submission(number, [5]))
        peer.says(Output(1, [4], []), Output(2, [], [], error="no"))
        peer.says(Output(1, [], [], "stop"))
        assert peer.model.step() == [Output(1, [4], []), Output(2, [], [], error="no")]
        assert peer.model.running == 2
        assert peer.model.step() == [Output(1, [], [], "stop")]
        assert peer.model.running == 1

    def test_a_step_that_gave_nothing_is_one(self, peer: Peer) -> None:
        """A step without outputs counts as a step. Otherwise a long prompt would look like a
        hang.
        """
        peer.model.submit(submission(1, [5]))
        peer.says()
        assert peer.model.step() == []

    def test_what_was_cancelled_gives_nothing(self, peer: Peer) -> None:
        for number in (1, 2):
            peer.model.submit(submission(number, [5]))
        peer.model.cancel(1)
        peer.model.cancel(1)
        peer.model.cancel(77)
        peer.says(Output(1, [4], []), Output(2, [4], []))
        assert peer.model.step() == [Output(2, [4], [])]
        assert peer.model.running == 1
        sent = [peer.channel.receive() for _ in range(3)]
        assert sent[2] == Abort(1)

    def test_news_ends_the_wait(self, peer: Peer) -> None:
        peer.model.submit(submission(1, [5]))
        steps: list[Any] = []
        waiting = threading.Thread(target=lambda: steps.append(peer.model.step()))
        waiting.start()
        time.sleep(0.05)
        assert waiting.is_alive()
        peer.model.wake()
        waiting.join(60)
        assert steps == [None]

    def test_many_news_are_one(self, peer: Peer) -> None:
        for _ in range(100):
            peer.model.wake()
        peer.model.submit(submission(1, [5]))
        peer.says(Output(1, [4], []))
        assert peer.model.step() is None
        assert peer.model.step() == [Output(1, [4], [])]

    def test_usage_is_told_while_nothing_runs(self, peer: Peer) -> None:
        peer.says(usage=0.75)
        peer.until(lambda: peer.model.usage == 0.75)

    def test_the_end_of_the_child(self, peer: Peer) -> None:
        for number in (1, 2):
            peer.model.submit(submission(number, [5]))
        peer.says(usage=0.75)
        assert peer.model.step() == []
        peer.kill()
        with pytest.raises(ChildLostError):
            peer.model.step()
        assert not peer.model.alive
        assert peer.model.usage == 0
        assert peer.model.abandon("why") == [
            Output(identifier, [], [], error="why") for identifier in (1, 2)
        ]
        assert peer.model.running == 0
        # Later requests fail as well, and do not wait forever.
        peer.model.submit(submission(3, [5]))
        with pytest.raises(ChildLostError):
            peer.model.step()

    def test_a_child_that_talks_nonsense_is_killed(self, peer: Peer) -> None:
        peer.model.submit(submission(1, [5]))
        peer.socket.sendall(b"\1\0\0\0\xc1")
        with pytest.raises(ChildLostError):
            peer.model.step()
        assert peer.process.poll() == -signal.SIGKILL


class TestSleep:
    @pytest.mark.parametrize(("move", "sent"), [("sleep", Sleep()), ("wake_up", Wake())])
    def test_waits_for_the_child(self, peer: Peer, move: str, sent: Any) -> None:
        moving = threading.Thread(target=getattr(peer.model, move))
        moving.start()
        assert peer.channel.receive() == sent
        assert peer.model.at_work
        peer.channel.send(Moved())
        peer.says(usage=0)
        moving.join(60)
        assert not moving.is_alive()
        peer.until(lambda: not peer.model.at_work)

    def test_a_failure_is_raised(self, peer: Peer) -> None:
        peer.channel.send(Moved("no memory"))
        with pytest.raises(RuntimeError, match="no memory"):
            peer.model.sleep()

    def test_a_child_that_ends_is_not_awaited(self, peer: Peer) -> None:
        threading.Timer(0.1, peer.kill).start()
        with pytest.raises(ChildLostError):
            peer.model.sleep()

    def test_only_while_nothing_runs(self) -> None:
        engine = ChildEngine.__new__(ChildEngine)
        calls: list[Any] = []
        library: Any = SimpleNamespace(
            sleep=lambda **more: calls.append(more),
            wake_up=lambda: calls.append("awake"),
            collective_rpc=lambda _work: [0],
        )
        engine._vllm, engine._answers = library, {1: EngineSequence(frozenset(), 0)}
        engine._devices = 1
        assert _moved(engine.sleep) == Moved("sequences are running")
        engine._answers.clear()
        assert _moved(engine.sleep) == _moved(engine.wake_up) == Moved()
        assert calls == [{"level": 1}, "awake"]

    def test_what_it_still_holds_is_reported(self, peer: Peer) -> None:
        peer.channel.send(Moved(held_bytes=7))
        assert peer.model.sleep() == 7

    def test_of_several_processes(self) -> None:
        engine = ChildEngine.__new__(ChildEngine)
        engine._answers, engine._devices = {}, 2
        results = {sleep.held_bytes: [5, 9], sleep.free_backup: [0, 0], sleep.backup_bytes: [3, 4]}
        engine._vllm = SimpleNamespace(
            sleep=lambda **_more: None,
            wake_up=lambda: None,
            collective_rpc=lambda work: results[work],
        )
        assert _moved(engine.sleep) == Moved(held_bytes=9)
        assert _moved(engine.wake_up) == Moved()
        assert engine._sleep_bytes() == 7

    def test_an_unmeasured_model_does_not_sleep(self) -> None:
        engine = ChildEngine.__new__(ChildEngine)
        engine._devices = 1

        def fail(_work: Any) -> None:
            raise AttributeError("pointer_to_data")

        engine._vllm = SimpleNamespace(collective_rpc=fail)
        assert engine._sleep_bytes() is None

    @pytest.mark.parametrize(
        ("platform", "is_supported"),
        [
            ({"is_sleep_mode_available": True, "is_cumem_allocator_available": True}, True),
            ({"is_sleep_mode_available": True, "is_cumem_allocator_available": False}, False),
            ({"is_sleep_mode_available": False, "is_cumem_allocator_available": True}, False),
            ({"is_sleep_mode_available": True}, True),
        ],
    )
    def test_support(
        self, platform: dict[str, bool], is_supported: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = {name: lambda answer=answer: answer for name, answer in platform.items()}
        platforms = SimpleNamespace(current_platform=SimpleNamespace(**answers))
        monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)  # type: ignore[arg-type]
        assert sleep.is_supported() is is_supported

    def test_other_processes_need_no_stoker(self) -> None:
        """The functions are sent by value to processes that cannot import them."""
        cloudpickle = pytest.importorskip("cloudpickle")
        sent: list[bytes] = []
        engine = SimpleNamespace(collective_rpc=lambda work: sent.append(cloudpickle.dumps(work)))
        try:
            sleep.run_in_processes(engine, sleep.backup_bytes, 2)
        finally:
            cloudpickle.unregister_pickle_by_value(sleep)
        answer = subprocess.run(
            [sys.executable, "-c", WORKER], input=sent[0], capture_output=True, check=True
        )
        # 5 and 1024 bytes are kept in pieces of 8 and 1024, the cache is dropped.
        assert answer.stdout == b"1032"


WORKER = """\
import pickle, sys, types
sys.modules["stoker"] = None
sys.modules["vllm"] = types.ModuleType("vllm")
module = sys.modules["vllm.device_allocator"] = types.ModuleType("vllm.device_allocator")
pieces = [("weights", 5), ("runtime", 1024), ("kv_cache", 4096)]
data = {
    place: types.SimpleNamespace(tag=tag, handle=(0, size, place, 0))
    for place, (tag, size) in enumerate(pieces)
}
module.get_mem_allocator_instance = lambda: types.SimpleNamespace(pointer_to_data=data)
print(pickle.load(sys.stdin.buffer)(None), end="")
"""


class TestSeveralDevices:
    def test_memory_of_all_processes_is_measured(self) -> None:
        with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"]) as shell:
            try:
                deadline = time.monotonic() + 60
                while len(pids := list(descendants(shell.pid))) < 2:
                    assert time.monotonic() < deadline
                assert all(psutil.Process(pid).name() in {"sh", "sleep"} for pid in pids)
                assert list(descendants(1 << 30)) == []
            finally:
                for pid in [*pids, shell.pid]:
                    os.kill(pid, signal.SIGKILL)

    def test_a_form_is_refused(self) -> None:
        """The answers' forms are in another process than the logits."""
        engine = ChildEngine.__new__(ChildEngine)
        engine._has_forms = False
        (output,) = _submitted(engine, Submit(id=4, prompt=[1], sampling=GREEDY), object())
        assert output.form and "'devices' to 1" in output.error

    def test_forms_are_masks_of_the_scheduler(
        self, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = SimpleNamespace(StructuredOutputRequest=SimpleNamespace)
        monkeypatch.setitem(
            sys.modules,
            "vllm.v1.structured_output.request",
            module,  # type: ignore[arg-type]
        )
        manager = SimpleNamespace(backend=None)
        others = {
            str(number): SimpleNamespace(
                sampling_params=SimpleNamespace(extra_args={"id": number}),
                structured_output_request=None,
            )
            for number in (3, 4, 5)
        }
        core: Any = SimpleNamespace(
            structured_output_manager=manager, scheduler=SimpleNamespace(requests=others)
        )
        form_masks.prepare(core, VOCABULARY)
        matcher = grammars.matcher(json_grammar({"type": "boolean"}), "f")
        answer = EngineSequence(frozenset(), 0, matcher=matcher)
        form_masks.attach(core, 4, answer)
        form: Any = others["4"].structured_output_request
        assert [request.structured_output_request for request in others.values()] == [
            None,
            form,
            None,
        ]
        backend: Any = manager.backend
        mask = backend.allocate_token_bitmask(2)
        assert mask.shape == (2, -(-VOCABULARY // 32)) and mask.dtype == torch.int32
        drawn = b""
        for _ in range(8):
            form.grammar.fill_bitmask(mask, 1)
            assert (mask[0] == -1).all(), "other rows stay as they are"
            bits = np.unpackbits(mask[1].numpy().view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits)
            expected = np.unpackbits(matcher.allowed(), bitorder="little")
            assert allowed.tolist() == np.flatnonzero(expected).tolist()
            assert 0 < len(allowed) < VOCABULARY
            drawn += grammars.bytes_of(int(allowed[-1]))
            assert form.grammar.accept_tokens("4", [int(allowed[-1])])
            if matcher.consume(int(allowed[-1])):
                break
        assert not form.grammar.is_terminated()
        assert answer.error is None
        assert drawn in {b"true", b"false"}

    @pytest.mark.parametrize("error", [FormError("too much work"), None])
    def test_a_form_that_allows_nothing(self, error: Exception | None) -> None:
        def allowed() -> Any:
            if error:
                raise error
            return np.zeros(8, np.uint8)

        answer = EngineSequence(frozenset(), 0, matcher=SimpleNamespace(allowed=allowed))
        mask = form_masks.FormBackend(100).allocate_token_bitmask(1)
        form_masks.FormGrammar(answer).fill_bitmask(mask, 0)
        assert (mask == -1).all()
        assert answer.error is error or str(answer.error) == NOTHING

    def test_a_form_begins_after_a_token(self) -> None:
        waiting: Any = SimpleNamespace(allowed=lambda: None)
        answer = EngineSequence(frozenset(), 0, matcher=waiting)
        mask = torch.zeros((1, 4), dtype=torch.int32)
        form_masks.FormGrammar(answer).fill_bitmask(mask, 0)
        assert (mask == -1).all()

    def test_another_version_of_vllm_refuses_forms(self) -> None:
        """A sequence whose form cannot be enforced does not run."""
        engine = ChildEngine.__new__(ChildEngine)
        aborted: list[list[str]] = []
        engine._core = SimpleNamespace()
        engine.facts = Ready(max_length=64, vocabulary=50)
        assert not engine._prepare_forms()
        engine._vllm = SimpleNamespace(abort_request=aborted.append)
        engine._answers = {4: EngineSequence(frozenset(), 0)}
        with pytest.raises(FormsUnsupportedError):
            engine._attach_form(4)
        assert aborted == [["4"]] and not engine._answers

    def test_options(self) -> None:
        load = msgspec.structs.replace(
            LOAD, device="cuda", devices=2, quantization="fp8", kv_cache_dtype="fp8"
        )
        options = _on_gpu(load)
        assert options["tensor_parallel_size"] == 2
        assert options["quantization"] == options["kv_cache_dtype"] == "fp8"
        assert not _with_forms(load, {})

    @pytest.mark.parametrize(
        "option", [{"devices": 2}, {"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}]
    )
    def test_a_cpu_has_none(self, option: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="need a GPU"):
            _on_cpu(msgspec.structs.replace(LOAD, **option))


class TestWorker:
    @pytest.fixture
    def worker(self, peer: Peer, llama: Path, tmp_path: Path) -> Iterator[LanguageWorker]:
        self.sent: list[Any] = []
        peer.model.vocabulary = VOCABULARY
        prompts = Prompts(llama, max_length=64, vocabulary=VOCABULARY)
        worker = LanguageWorker(
            peer.model, prompts, lambda *sent: self.sent.append(sent), FlightRecord(tmp_path / "f")
        )
        worker.start()
        worker.submit(
            Generate(
                1,
                Generation(
                    api="completions",
                    prompts=[[5, 6]],
                    sampling=Sampling(max_tokens=4),
                    answer={"id": "c", "model": "m", "created": 0},
                ),
            )
        )
        yield worker

    def test_only_steps_are_progress(self, peer: Peer, worker: LanguageWorker) -> None:
        """Only steps count as progress. Otherwise a child that hangs would not be noticed while
        clients come and go.
        """
        submitted = peer.channel.receive()
        assert isinstance(submitted, Submit) and submitted.prompt == [5, 6]
        before = worker.counters.progress
        for _ in range(5):
            peer.model.wake()
            time.sleep(0.01)
        assert worker.counters.progress == before
        peer.says()
        peer.until(lambda: worker.counters.progress == before + 1)

    def test_a_client_that_leaves_does_not_wait_for_a_step(
        self, peer: Peer, worker: LanguageWorker
    ) -> None:
        submitted: Any = peer.channel.receive()
        worker.cancel(1)
        assert peer.channel.receive() == Abort(submitted.id)

    def test_moves(self, peer: Peer, worker: LanguageWorker) -> None:
        """A replica passes the gateway's messages on to the child, and its answers back."""
        submitted: Any = peer.channel.receive()
        worker.cancel(1)
        assert peer.channel.receive() == Abort(submitted.id)
        for message, moved in ((Sleep(), Moved(held_bytes=7)), (Wake(), Moved())):
            self.sent.clear()
            worker.move(message)
            assert peer.channel.receive() == message
            peer.channel.send(moved)
            peer.says()
            peer.until(lambda: self.sent)
            assert self.sent == [(moved, None)]
        assert worker.alive

    def test_a_child_that_ends_while_it_sleeps(self, peer: Peer, worker: LanguageWorker) -> None:
        peer.channel.receive()
        worker.cancel(1)
        peer.channel.receive()
        peer.until(lambda: self.sent)
        self.sent.clear()
        worker.move(Sleep())
        peer.channel.receive()
        peer.kill()
        peer.until(lambda: self.sent)
        ((moved, _),) = self.sent
        assert "has ended" in moved.error
        assert not worker.alive

    def test_the_end_of_the_child(self, peer: Peer, worker: LanguageWorker) -> None:
        peer.channel.receive()
        assert worker.alive
        peer.kill()
        peer.until(lambda: self.sent)
        ((failure, _),) = self.sent
        assert (failure.id, failure.code) == (1, "inference_failed")
        assert not worker.alive
        assert worker.accepted == 0


# --- the real vLLM ---

PYTHON = os.environ.get("STOKER_VLLM_PYTHON", "")
real = pytest.mark.skipif(not PYTHON, reason="STOKER_VLLM_PYTHON names no interpreter with vLLM")

LENGTHS = (1, 2, 31, 32, 33, 64, 100, 257)
THINK_END = "</think>"


@pytest.fixture(scope="module")
def llama32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a model with heads of 32, the minimum of vLLM's attention on CPUs."""
    return tiny_llama(tmp_path_factory.mktemp("llama32"), head_size=32)


@pytest.fixture(scope="module")
def reference(llama32: Path) -> Any:
    return load(llama32, torch.float32, torch.device("cpu"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> OwnEnvironment:
    cache = os.environ.get("STOKER_TEST_VLLM_CACHE") or tmp_path_factory.mktemp("vllm-cache")
    return OwnEnvironment(python=PYTHON, cache_dir=str(cache), gpu_share=0.9)


def wanted(folder: Path) -> LoadModel:
    return LoadModel(
        folder=str(folder), device="cpu", dtype="float32", cache_bytes=64 << 20, gpu_share=0.9
    )


@pytest.fixture(scope="module")
def model(llama32: Path, environment: OwnEnvironment) -> Iterator[VllmModel]:
    child = ModelProcess(environment, "cpu", threads=1)
    ready = child.load(wanted(llama32))
    assert ready == Ready(max_length=320, vocabulary=VOCABULARY)
    yield VllmModel(child, ready, ())
    child.process.kill()


def prompt(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(1000 * seed + length)
    return [chance.randrange(VOCABULARY) for _ in range(length)]


def drain(model: Any) -> dict[int, list[Output]]:
    outputs_by_id: dict[int, list[Output]] = {}
    deadline = time.monotonic() + 120
    while model.running:
        assert time.monotonic() < deadline
        for output in model.step() or ():
            outputs_by_id.setdefault(output.id, []).append(output)
    return outputs_by_id


def tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def answered(model: Any, *submissions: Any) -> dict[int, list[Output]]:
    for request in submissions:
        model.submit(request)
    return drain(model)


def asking(**changes: Any) -> Sampling:
    return msgspec.structs.replace(GREEDY, **changes)


def idle(model: VllmModel) -> None:
    deadline = time.monotonic() + 60
    while model.usage:
        assert time.monotonic() < deadline, model.usage
        time.sleep(0.01)


@real
class TestAnswers:
    def test_are_those_of_transformers(self, model: VllmModel, reference: Any) -> None:
        outputs_by_id = answered(
            model, *(submission(100 + length, prompt(length)) for length in LENGTHS)
        )
        for length in LENGTHS:
            outputs = outputs_by_id[100 + length]
            assert tokens(outputs) == generated(reference, prompt(length), 8), length
            assert outputs[-1].finish == "length"
            assert not any(output.error for output in outputs)
        idle(model)

    def test_log_probabilities(self, model: VllmModel, reference: Any) -> None:
        """Log probabilities come from the model's own distribution, independent of sampling
        options.
        """
        wishes = asking(logprobs=3, max_tokens=4, logit_bias={7: 50.0}, temperature=1.0)
        (outputs,) = answered(model, submission(1, prompt(20), wishes)).values()
        sequence = prompt(20)
        assert tokens(outputs) == [7] * 4
        for output in outputs:
            with torch.inference_mode():
                row = reference(torch.tensor([sequence])).logits[0, -1].log_softmax(-1)
            (logprob,) = output.logprobs
            values, places = row.topk(3)
            assert logprob.token == 7
            assert abs(logprob.value - float(row[7])) < 1e-3
            assert [token for token, _ in logprob.top] == places.tolist()
            for (_, value), theirs in zip(logprob.top, values.tolist(), strict=True):
                assert abs(value - theirs) < 1e-3
            sequence.append(7)

    @pytest.mark.parametrize("count", [0, 3])
    def test_log_probabilities_of_prompts(
        self, model: VllmModel, reference: Any, count: int
    ) -> None:
        """Log probabilities are right in pieces, together, and again with the whole prompt in the
        cache.
        """
        prompts = {length: prompt(length) for length in (1, 2, 33, 300)}
        for _ in range(2):
            wishes = asking(prompt_logprobs=2, max_tokens=count)
            outputs_by_length = answered(
                model, *(submission(at, one, wishes) for at, one in prompts.items())
            )
            for length, prompt_tokens in prompts.items():
                with torch.inference_mode():
                    rows = reference(torch.tensor([prompt_tokens])).logits[0].log_softmax(-1)
                logprobs = [one for output in outputs_by_length[length] for one in output.prompt]
                assert [one.token for one in logprobs] == prompt_tokens[1:]
                for place, one in enumerate(logprobs):
                    assert abs(one.value - float(rows[place, one.token])) < 1e-4
                    values, likeliest = rows[place].topk(2)
                    assert [token for token, _ in one.top] == likeliest.tolist()
                    assert abs(one.top[0][1] - float(values[0])) < 1e-4
                assert len(tokens(outputs_by_length[length])) == count
                assert outputs_by_length[length][-1].finish == "length"
        idle(model)

    def test_no_alternatives(self, model: VllmModel) -> None:
        (outputs,) = answered(model, submission(1, prompt(9), asking(logprobs=0))).values()
        assert [logprob.top for output in outputs for logprob in output.logprobs] == [[]] * 8

    def test_seeds(self, model: VllmModel) -> None:
        def drawn(seed: int) -> list[int]:
            wishes = asking(temperature=1.5, seed=seed, max_tokens=20)
            return tokens(answered(model, submission(1, prompt(9), wishes))[1])

        assert drawn(5) == drawn(5)
        assert drawn(-1) == drawn(-1)
        assert len({tuple(drawn(seed)) for seed in (5, -1, 6, -(2**63))}) == 4

    def test_ends(self, model: VllmModel, reference: Any) -> None:
        whole = generated(reference, prompt(40), 20)
        end = whole[5]
        stopping = asking(stop_token_ids=[end], max_tokens=20)
        later = asking(stop_token_ids=[end], max_tokens=20, min_tokens=9)
        outputs_by_id = answered(
            model, submission(1, prompt(40), stopping), submission(2, prompt(40), later)
        )
        first = whole.index(end)
        assert tokens(outputs_by_id[1]) == whole[:first]
        assert outputs_by_id[1][-1].finish == "stop"
        assert end not in tokens(outputs_by_id[2])[:9]
        assert len(tokens(outputs_by_id[2])) >= 9

    def test_repetition_penalty(self, model: VllmModel) -> None:
        wishes = asking(repetition_penalty=50.0, max_tokens=100)
        drawn = tokens(answered(model, submission(1, prompt(9), wishes))[1])
        assert len(set(drawn)) > 90

    def test_a_prompt_again(self, model: VllmModel, reference: Any) -> None:
        first = answered(model, submission(1, prompt(100, seed=5)))[1]
        again = answered(model, submission(2, prompt(100, seed=5)))[2]
        assert sum(output.cached for output in first) == 0
        assert [output.cached for output in again if output.cached] == [96]
        assert tokens(again) == tokens(first) == generated(reference, prompt(100, seed=5), 8)

    def test_to_the_full_length(self, model: VllmModel, reference: Any) -> None:
        outputs = answered(model, submission(1, prompt(314), asking(max_tokens=6)))[1]
        assert tokens(outputs) == generated(reference, prompt(314), 6)
        assert outputs[-1].finish == "length"


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(tokenizer(), VOCABULARY, [])


@real
class TestForms:
    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("count", [3, 60])
    def test_are_followed_as_by_our_own_engines(
        self, model: VllmModel, reference: Any, grammars: Grammars, after: bool, count: int
    ) -> None:
        ours = Scheduler(TorchRunner(reference, threads=1, cache_bytes=1 << 24), ())
        behind = generated(reference, prompt(30), 6)[3] if after else None
        wishes = asking(max_tokens=count)

        def form() -> Any:
            return grammars.matcher(json_grammar(SCHEMA), "f", behind)

        theirs = answered(model, submission(1, prompt(30), wishes, matcher=form()))[1]
        own_outputs = answered(ours, submission(1, prompt(30), wishes, matcher=form()))[1]
        assert tokens(theirs) == tokens(own_outputs)
        assert theirs[-1].finish == own_outputs[-1].finish

    def test_beside_those_without(
        self, model: VllmModel, reference: Any, grammars: Grammars
    ) -> None:
        """Rows move as sequences come and go. Each sequence keeps its own form."""
        formed = grammars.matcher(json_grammar(SCHEMA), "f")
        for number in range(6):
            wishes = asking(max_tokens=3 + 5 * number)
            model.submit(submission(number, prompt(20 + number), wishes))
        model.submit(submission(50, prompt(30), asking(max_tokens=60), matcher=formed))
        first = model.step() or []
        model.cancel(2)
        outputs_by_id = drain(model)
        for output in first:
            outputs_by_id.setdefault(output.id, []).insert(0, output)
        text = tokenizer().decode(tokens(outputs_by_id[50]))
        assert msgspec.json.decode(text)["city"] in ("Paris", "Rome")
        for number in (0, 1, 3, 4, 5):
            expected = generated(reference, prompt(20 + number), 3 + 5 * number)
            assert tokens(outputs_by_id[number]) == expected

    def test_what_cannot_be_compiled(self, model: VllmModel) -> None:
        """Our own side rejects such a grammar first, but the child must not fail on it either."""
        broken: Any = SimpleNamespace(grammar='{"grammars": 7}', after=None, plain=())
        (outputs,) = answered(model, submission(1, prompt(3), matcher=broken)).values()
        assert outputs[-1].form
        assert "cannot be enforced" in outputs[-1].error

    def test_nothing_left_to_draw(self, model: VllmModel, grammars: Grammars) -> None:
        """The form leaves only the end, and the model has no end token. A bias cannot help."""
        form = grammars.matcher(json_grammar({"const": "ab"}), "f")
        (outputs,) = answered(model, submission(1, prompt(3), matcher=form)).values()
        assert outputs[-1].finish == "stop"
        assert tokenizer().decode(tokens(outputs)) == '"ab"'


@real
class TestChild:
    def test_leaving_at_any_time(self, model: VllmModel, reference: Any) -> None:
        chance = random.Random(7)
        running: set[int] = set()
        for number in range(100):
            wishes = asking(max_tokens=150, temperature=1.0)
            model.submit(submission(1000 + number, prompt(chance.choice(LENGTHS)), wishes))
            running.add(1000 + number)
            for _ in range(chance.randrange(3)):
                model.step()
            for identifier in [identifier for identifier in running if chance.random() < 0.2]:
                model.cancel(identifier)
                running.discard(identifier)
        for identifier in running:
            model.cancel(identifier)
        assert model.running == 0
        idle(model)
        outputs = answered(model, submission(1, prompt(33)))[1]
        assert tokens(outputs) == generated(reference, prompt(33), 8)

    def test_listens_nowhere(self, model: VllmModel) -> None:
        (pid,) = model.children
        child = psutil.Process(pid)
        assert [
            connection
            for connection in child.net_connections("inet")
            if connection.status == "LISTEN"
        ] == []
        assert child.children(recursive=True) == []

    def test_knows_no_settings(self, model: VllmModel) -> None:
        (pid,) = model.children
        known = psutil.Process(pid).environ()
        assert not [name for name in known if name.startswith("STOKER") or name == "PYTHONPATH"]
        assert known["HF_HUB_OFFLINE"] == "1"

    def test_a_folder_that_is_no_model(self, tmp_path: Path, environment: OwnEnvironment) -> None:
        child = ModelProcess(environment, "cpu", threads=1)
        with pytest.raises(RuntimeError):
            child.load(wanted(tmp_path))
        assert child.process.wait(30) == 0

    def test_ends_with_its_model(self, model: VllmModel) -> None:
        """The model fails if its child is killed. Runs last, because nothing works afterwards."""
        (pid,) = model.children
        model.submit(submission(1, prompt(9), asking(max_tokens=300)))
        model.step()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ChildLostError):
            while True:
                model.step()
        assert not model.alive
        (output,) = model.abandon("It failed.")
        assert (output.id, output.error) == (1, "It failed.")
