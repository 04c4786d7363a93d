"""Maps sampled stacks to the stages of a request.

`GATEWAY` and `REPLICA` are ordered tables: the first row that matches a frame decides about it. A
stack belongs to the stage of its innermost frame that has one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

OTHER = "other"
PASS = "pass"
LOOP = "loop"
"""Stage of the event loop, for stacks without a frame of the server inside it."""
WAIT = "wait"
"""Stage of falling asleep and waking up: the kernel's part, and the interpreter's lock."""
ENGINE_THREADS = "engine"
"""Name in the kernel of the engine's threads. Its workers have no Python frames."""

_FRAME = re.compile(r"(?P<function>.+) \((?P<file>[^()]+)\)")
_THREAD = re.compile(r"thread \((?P<id>[0-9A-Fa-fxX]+)\)(?:: (?P<name>.*))?")
_ROOTS = ("/site-packages/", "/stoker/")
_LIBRARY = re.compile(r".*/lib/python3[^/]*/")


@dataclass(frozen=True)
class Row:
    """Frames of the files whose path begins with `file`, and the functions that begin with
    `function`.
    """

    stage: str
    file: str
    function: str = ""

    def matches(self, function: str, file: str) -> bool:
        return file.startswith(self.file) and function.startswith(self.function)


def _rows(*stages: tuple[str, Sequence[str]]) -> tuple[Row, ...]:
    """Returns the rows of stages with places such as `file` or `file:function`."""
    return tuple(
        Row(stage, file, function)
        for stage, places in stages
        for file, _, function in (place.partition(":") for place in places)
    )


_HTTP = "stoker/platform/web/http.py"
_CYCLE = "uvicorn/protocols/http/httptools_impl.py:RequestResponseCycle"
_TRANSPORT = "stoker/runtime/pool/transport.py"
_STREAMING = "stoker/inference/streaming.py"
_EXCHANGE = "stoker/server/edge/exchange.py"
_SHORT = "stoker/inference/short_calls.py"

GATEWAY = _rows(
    (OTHER, ("stoker/runtime/local/processes/", "stoker/runtime/local/supervision.py")),
    (
        "write",
        (
            "stoker/server/edge/answer_transport.py",
            f"{_CYCLE}.send",
            "starlette/responses.py",
            "starlette/middleware/errors.py:ServerErrorMiddleware.__call__.<locals>._send",
            f"{_HTTP}:RequestContext._answer.<locals>.send_with_id",
            f"{_HTTP}:LastResort.__call__.<locals>.send_on",
            f"{_STREAMING}:Streamed",
            f"{_STREAMING}:_part",
            f"{_EXCHANGE}:HttpExchange.send_whole",
            f"{_EXCHANGE}:HttpExchange.begin",
            f"{_EXCHANGE}:HttpExchange.send_part",
            f"{_EXCHANGE}:HttpExchange.end",
            f"{_EXCHANGE}:HttpExchange._head",
            f"{_EXCHANGE}:HttpExchange._complete",
            f"{_EXCHANGE}:_chunk",
            f"{_SHORT}:_ShortReply",
            f"{_SHORT}:_stream",
            f"{_SHORT}:_content_type",
            f"{_SHORT}:_version",
        ),
    ),
    ("log", ("stoker/base/logs.py", "logging/")),
    (
        "parse",
        (
            f"{_CYCLE}.receive",
            f"{_EXCHANGE}:HttpExchange.read_body",
            "starlette/requests.py:Request.body",
            "starlette/requests.py:Request.stream",
            f"{_HTTP}:_limited",
            "stoker/platform/web/structure.py",
            "stoker/platform/web/encodings.py",
            "stoker/media/",
        ),
    ),
    (LOOP, ("uvicorn/server.py", "asyncio/runners.py")),
    (
        "edge",
        (
            "stoker/server/edge/",
            "uvicorn/",
            "starlette/middleware/",
            "starlette/applications.py",
            "fastapi/applications.py",
            "fastapi/_body_limit.py",
            "fastapi/telemetry/",
            _HTTP,
            "stoker/platform/web/cors.py",
            "stoker/platform/web/prefix.py",
            f"{_SHORT}:ShortCalls",
            f"{_SHORT}:_PlainHeaders",
            f"{_SHORT}:_CallRequest",
        ),
    ),
    ("key", ("stoker/tenancy/keys/", "stoker/tenancy/usage/balances.py")),
    (
        "count",
        ("stoker/tenancy/usage/", "stoker/server/telemetry/", "stoker/runtime/listening.py"),
    ),
    (
        "validate",
        (
            "stoker/inference/json_bodies.py:validated",
            "stoker/inference/tasks.py",
            "stoker/inference/operation.py",
            "stoker/inference/openai/",
            "stoker/models/",
            "stoker/wire/generation_request.py",
        ),
    ),
    ("parse", ("stoker/inference/json_bodies.py", "stoker/inference/bodies.py")),
    (
        "send",
        (
            "stoker/runtime/pool/handle.py:ReplicaHandle._send",
            "stoker/runtime/pool/work_messages.py",
            "stoker/runtime/packed_calls.py",
            "stoker/runtime/pool/sending.py",
            "stoker/runtime/pool/handle.py:ReplicaHandle.begin",
            "stoker/runtime/pool/pending_calls.py:PendingCalls.begin",
            "stoker/wire/packing.py:Packing.pack",
            "stoker/wire/framing.py:framed",
            f"{_TRANSPORT}:_ReplicaConnection.write",
            f"{_TRANSPORT}:Channel.send",
        ),
    ),
    (
        "receive",
        (
            "stoker/wire/packing.py",
            "stoker/wire/framing.py",
            _TRANSPORT,
            "stoker/runtime/pool/pending_calls.py",
            "stoker/runtime/pool/answers.py",
            "stoker/runtime/pool/callbacks.py",
            "stoker/runtime/parts.py",
        ),
    ),
    ("route", ("stoker/inference/", "stoker/registry/deployments/", "stoker/runtime/")),
    (OTHER, ("stoker/server/", "aiosqlite/")),
)

_WORKER = "stoker/replica/worker.py:TaskWorker"
_LANGUAGE = "stoker/replica/language_worker.py:LanguageWorker"
_LINK = "stoker/replica/link.py:Link"
_TORCH = "stoker/models/engines/torch.py"

REPLICA = _rows(
    (
        WAIT,
        (
            "threading.py:Condition.wait",
            "stoker/replica/queue_thread.py:QueueThread._take_in",
            f"{_LINK}.receive",
        ),
    ),
    (
        "send",
        (
            "stoker/replica/replies.py",
            *(f"{_LINK}.{name}" for name in ("send", "wake", "flush", "_add", "_push")),
            "stoker/wire/packing.py:Packing.pack",
            "stoker/wire/framing.py:framed",
        ),
    ),
    (
        "receive",
        (
            "stoker/replica/link.py",
            "stoker/wire/packing.py",
            "stoker/wire/framing.py",
            f"{_WORKER}.submit",
            f"{_LANGUAGE}.submit",
            f"{_WORKER}._begin_items",
            "stoker/replica/open_requests.py",
            "stoker/replica/main.py:_pass_on",
        ),
    ),
    (
        "encode",
        (
            "stoker/replica/task_request.py:RequestState.encoded",
            "stoker/replica/task_request.py:_check_numbers",
            "stoker/wire/sse.py",
            "stoker/models/chat/answers/",
            "stoker/models/chat/forms/",
        ),
    ),
    (
        "prepare",
        (
            "stoker/replica/preparation/",
            "stoker/replica/sequences.py",
            "stoker/models/chat/prompts/",
            *(f"{_WORKER}.{name}" for name in ("_prepare", "_accept", "_entry", "_check")),
            *(f"{_LANGUAGE}.{name}" for name in ("_prepare", "_submit")),
        ),
    ),
    (
        "post",
        (
            *(f"{_WORKER}.{name}" for name in ("_finish", "_count", "_write", "_answer")),
            *(f"{_LANGUAGE}.{name}" for name in ("_finish", "_write", "_close", "_forget")),
        ),
    ),
    (
        "collate",
        (
            "stoker/models/engines/layout.py",
            f"{_TORCH}:TorchEngine.batch",
            f"{_TORCH}:TorchEngine.stage",
            f"{_TORCH}:LaunchedBatch.outputs",
        ),
    ),
    (
        "draw",
        (
            *(f"stoker/models/llm/{name}" for name in ("sampl", "draws", "logit_rules")),
            "stoker/models/llm/token_edits.py",
            "stoker/models/llm/scheduler.py:Scheduler._draw",
        ),
    ),
    (PASS, ("stoker/models/engines/", "stoker/models/llm/engines/", "openvino/")),
    (
        "batch",
        (
            "stoker/models/llm/",
            "stoker/replica/queue_thread.py",
            "stoker/replica/batch_choice.py",
            "stoker/replica/batching.py",
            "stoker/replica/engine_thread.py",
            "stoker/replica/model_thread.py",
            "stoker/replica/passes.py",
            "stoker/replica/shared_lock.py",
            "stoker/replica/overlap.py",
            "stoker/replica/worker.py",
            "stoker/replica/language_worker.py",
        ),
    ),
    (OTHER, ("stoker/replica/main.py",)),
)


@dataclass(frozen=True)
class Sample:
    """A stack of a thread, and how often it was sampled."""

    thread: int
    frames: Sequence[str]
    """Outermost first, such as `Calls.run (stoker/inference/calls.py)`."""
    count: int


def parse(folded: str) -> list[Sample]:
    """Returns the samples of py-spy's raw format with threads and whole file names."""
    samples: list[Sample] = []
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        first, *frames = stack.split(";")
        thread = _THREAD.match(first)
        if thread:
            number = int(thread["id"], 16 if thread["id"].lower().startswith("0x") else 10)
            samples.append(Sample(number, [shortened(frame) for frame in frames], int(count)))
    return samples


def shortened(frame: str) -> str:
    """Returns a frame with the path of its file inside its package's folder."""
    match = _FRAME.fullmatch(frame)
    if match is None:
        return frame
    file = match["file"]
    if _ROOTS[0] in file:
        file = file.rpartition(_ROOTS[0])[2]
    elif _ROOTS[1] in file:
        file = "stoker/" + file.rpartition(_ROOTS[1])[2]
    else:
        file = _LIBRARY.sub("", file)
    return f"{match['function']} ({file})"


def stage_of(frames: Sequence[str], rows: Sequence[Row]) -> str:
    """Returns the stage of the innermost frame that has one, or `OTHER`."""
    is_server = False
    for frame in reversed(frames):
        match = _FRAME.fullmatch(frame)
        if match is None:
            continue
        places = (row.stage for row in rows if row.matches(match["function"], match["file"]))
        if stage := next(places, ""):
            return OTHER if stage == LOOP and is_server else stage
        is_server = is_server or match["file"].startswith("stoker/")
    return OTHER


@dataclass(frozen=True)
class Thread:
    """A thread's name in the kernel, and its processor time in a profile, in seconds."""

    name: str
    cpu_s: float


def weighed(
    samples: Iterable[Sample], threads: Mapping[int, Thread], rows: Sequence[Row]
) -> Iterator[tuple[str, str, float]]:
    """Yields stages with their innermost frames and processor time in seconds.

    A thread's samples divide only its own processor time: a thread that waits may be sampled, too.
    """
    by_thread: dict[int, list[Sample]] = {}
    for sample in samples:
        by_thread.setdefault(sample.thread, []).append(sample)
    for number, thread in threads.items():
        sampled = by_thread.get(number, [])
        total = sum(sample.count for sample in sampled)
        for sample in sampled:
            innermost = sample.frames[-1] if sample.frames else thread.name
            yield stage_of(sample.frames, rows), innermost, thread.cpu_s * sample.count / total
        if not sampled:
            stage = PASS if thread.name == ENGINE_THREADS else OTHER
            yield stage, f"thread {thread.name}", thread.cpu_s


def shares(weights: Iterable[tuple[str, str, float]]) -> dict[str, float]:
    """Returns each stage's share of the processor time."""
    seconds: Counter[str] = Counter()
    for stage, _, spent in weights:
        seconds[stage] += spent
    total = sum(seconds.values())
    return {stage: spent / total for stage, spent in seconds.items()} if total else {}


def unmatched(weights: Iterable[tuple[str, str, float]]) -> Counter[str]:
    """Returns the innermost frames that have no stage, with their processor time in seconds."""
    frames: Counter[str] = Counter()
    for stage, frame, spent in weights:
        if stage == OTHER:
            frames[frame] += spent
    return frames
