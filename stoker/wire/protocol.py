"""What the gateway and a replica say to each other: msgpack heads over a socket, never pickles.

A message is one frame with the msgpack head, followed by raw frames where the head says so. The
replica side imports nothing beyond the standard library, msgspec, pydantic and its engine.
"""

from bisect import bisect_left
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Literal

import msgspec

from stoker.base.media_limits import MediaLimits
from stoker.wire.generation_request import Generation
from stoker.wire.notices import Notice
from stoker.wire.packing import Packing

WeightFormat = Literal["int8", "int4"]
Speculation = Literal["prompt_lookup", "off"]
"""What guesses the next tokens of a language model that we schedule."""
Precision = Literal["f32", "bf16", "i8"]
"""What OpenVINO computes in, as it names them; what `i8` does not reach stays in float32."""
VERDICT = "verdict.json"
"""In a conversion's folder, written last: without it the conversion did not end."""

BYTECODE = "bytecode"
"""In the cache of an engine with an environment of its own, which may not be written to."""


class OwnEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine lives that cannot live in our Python environment."""

    python: str
    """Its interpreter."""
    cache_dir: str
    """A folder with the bytecode of its packages, which replicas may read."""
    gpu_share: float
    """The part of a GPU's memory that a replica may take: as it was claimed, where that is counted.
    """
    compiled_dir: str = ""
    """A folder for what it compiles for a GPU: of one deployment, as others would run it."""


class Cell(msgspec.Struct, frozen=True):
    """What a process that runs a model has to itself."""

    folder: str
    """For all that it writes; it goes with the process."""
    user: int | None
    """Whom it is to become, where root starts it."""
    kept_back: str
    """The server's data, of which it gets what else it is told of, and nothing more."""


class Sharing(StrEnum):
    """What samples of a model may share a forward pass: with others, no answer is to change."""

    PADDED = "padded"
    """Those of any length, padded; lengths are rounded up."""
    SAME_LENGTH = "same_length"
    """Those of one length, as they are."""
    ALONE = "alone"
    """None."""
    ONE_PIECE = "one_piece"
    """None; and of a language model, a prompt is computed in one pass."""


class Execution(msgspec.Struct, frozen=True):
    """How a model is run on OpenVINO, as a `Trial` has found right."""

    folder: str
    """Of the model as it was converted."""
    precision: Precision
    cache_dir: str
    """For what is compiled: of this processor, as the trial is."""


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a replica learns about its deployment."""

    id: str
    pipeline: str
    model_dir: str
    address: str
    log_path: str
    flight_path: str
    engine: str
    device: str
    visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES: the graphics devices that it has claimed, and no others; None: they are
    not counted."""
    dtype: str
    threads: int
    batch_budgets: dict[str, int]
    """Engine → cost of a batch as measured earlier; those that lack are measured."""
    limits: MediaLimits
    sharing: Sharing | None = None
    """What may share a forward pass, where that was found earlier."""
    execution: Execution | None = None
    """On OpenVINO, if the model was converted and tried already."""
    environment: OwnEnvironment | None = None
    """Of an engine that needs one."""
    cell: Cell
    secret_path: str
    """Of a file with what it proves by who it is; it removes it."""
    conversions: str = ""
    """The folder of those of its model, which it may be told to go on with."""
    turns_with: str = ""
    """Replicas with the same name compute one after the other; empty: with nobody."""
    cache_bytes: int = 2 << 30
    """The most that a language model's keys and values may take on a CPU."""
    options: dict[str, Any] = {}
    """The deployment's `config`: what its engine takes."""
    adapters: str = ""
    """A folder with those that requests may name, which come and go; empty: there are none."""
    adapter_bytes: int = 256 << 20
    """What adapters that are kept loaded may take."""


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """A model to be converted for OpenVINO, in a process of its own."""

    id: str
    pipeline: str
    model_dir: str
    folder: str
    """Where the converted model is to be put."""
    log_path: str
    threads: int
    limits: MediaLimits
    cell: Cell
    weight_format: WeightFormat | None = None
    """Its weights are rounded to that."""
    in_int8: bool = False
    """Weights and activations are, to eight bits."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A converted model to be run as it would serve, in a process that may die of it."""

    id: str
    pipeline: str
    model_dir: str
    execution: Execution
    verdict_path: str
    """Where the `TrialVerdict` is to be put. A sign of life lies beside it (see `sign_of`)."""
    log_path: str
    threads: int
    limits: MediaLimits
    cell: Cell


class TrialVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial came to."""

    passed: bool
    reason: str = ""
    """Why it did not pass, a sentence for the deployment's owner."""
    difference: float | None = None
    """The largest from the reference, as a share of the reference's largest output."""
    cosine: float | None = None
    """The least of an answer with the reference's, of a model that was rounded."""
    labels: float | None = None
    """The share of clear ones that stayed on top there."""
    speedup: float | None = None
    """Over torch, for one sample and for a batch: the geometric mean. None: not measured."""


def sign_of(verdict_path: str) -> str:
    """The file that a trial touches after each step, once the model is compiled."""
    return f"{verdict_path}.running"


# --- gateway → replica ---


class Work(msgspec.Struct, frozen=True, tag="work"):
    """The raw frames are the contents of the media in its items."""

    id: int
    task: str
    items: list[Any]
    parameters: dict[str, Any]
    """For the stages, beside each item."""
    single: bool
    """True: the answer is the one item's result; False: a list of results."""
    finishing: dict[str, Any] = {}
    """For the task, once every item has its result."""
    stream: bool = False
    """True: the answer goes out in `Parts` as it is made. It has one item then."""
    key: str = ""
    """The API key that asked for it: those of different ones take turns."""
    adapter: str = ""
    """The folder in `ReplicaSpec.adapters` of what is to be added to the model for it."""


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    id: int
    generation: Generation
    key: str = ""
    """As of `Work`."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Nobody waits for the answer any more. `Cancelled` reports what was done for it."""

    id: int


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Go on with the converted model."""

    execution: Execution


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Answer what was accepted, then end."""


# --- replica → gateway ---


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """How far a load has come: 0 to 1, and the name of the step."""

    progress: float
    stage: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """Requests are taken from now on; the load took so many seconds."""

    seconds: float
    convertible: bool
    """Whether a conversion may be tried."""
    sharing: Sharing | None = None
    """What may share a forward pass, where that was looked for."""
    notices: list[Notice] = []
    """What the model's owner should know."""


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    message: str
    out_of_memory: bool = False
    lasting: bool = False
    """Whether waiting cannot change it: a package is missing, a class does not fit the files."""


class Result(msgspec.Struct, frozen=True, tag="result"):
    """One raw frame follows: the answer, or what is left of one that was streamed."""

    id: int
    counts: dict[str, int] = {}
    """What was worked on: `input_tokens`, `output_tokens`, `images`, `audio_ms`, `video_ms`."""
    times: dict[str, int] = {}
    """Phase → microseconds that the request was in it, one phase behind the other: `prepare`, then
    `queue` and `forward`, or `first_token` (with its queue) and `decode`, then `finish`.
    """


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """Answers a `Cancel`, unless the request was answered before."""

    id: int
    counts: dict[str, int] = {}
    """What was worked on until then, as `Result.counts`."""


class Parts(msgspec.Struct, frozen=True, tag="parts"):
    """One raw frame follows: the next pieces of answers that are streamed, one behind the other.

    A `Result` or a `Failure` ends each answer.
    """

    ids: list[int]
    sizes: list[int]
    """Bytes of each piece."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Of work that takes many steps."""

    id: int
    fraction: float


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """Answers a request that failed."""

    id: int
    code: str
    """`invalid_request`, `invalid_media` or `context_length_exceeded` for an input,
    `template_failed` or `inference_failed` for the model."""
    message: str
    param: str | None


BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The largest batch of each bucket that forward passes are counted in; one more has the rest."""


class Batches(msgspec.Struct):
    """Forward passes so far, by how many samples or sequences shared them."""

    passes: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BATCH_SIZES) + 1))
    samples: int = 0
    """Of all passes together."""
    drafted: int = 0
    """Tokens of language models that were guessed and computed in these."""
    accepted: int = 0
    """Of those, the ones that were drawn."""

    def count(self, size: int) -> None:
        self.passes[bisect_left(BATCH_SIZES, size)] += 1
        self.samples += size

    def __add__(self, other: "Batches") -> "Batches":
        passes = [one + two for one, two in zip(self.passes, other.passes, strict=True)]
        return Batches(
            passes,
            self.samples + other.samples,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """What a replica does and holds, once a second."""

    progress: int
    """Grows with every step of work done: accepted work and no growth means a hang."""
    accepted: int
    """Requests not answered yet, and threads that have not left what they began: what was
    cancelled counts until then."""
    memory_bytes: int
    """Proportional set size: pages shared with others count by their share."""
    own_bytes: int
    """Unique set size: what would be free if it ended."""
    busy_s: float
    """Time spent in forward passes since the start."""
    engine: str
    cache_usage: float | None
    """The share of the key-value cache that requests hold, of language models."""
    batches: Batches
    stuck_s: float = 0.0
    """For how long one of its threads has had work and made no step, whatever the others do."""
    is_settled: bool = True
    """Whether it is as fast as it will be: there is nothing left to measure in idle moments."""
    device_bytes: int | None = None
    """What torch holds of the graphics device that it has most of; None: nobody knows."""


class Calibrated(msgspec.Struct, frozen=True, tag="calibrated"):
    """A batch budget was measured, in padded tokens; to be kept for later replicas."""

    engine: str
    batch_budget: int


class Adopted(msgspec.Struct, frozen=True, tag="adopted"):
    """What came of an `Adopt`."""

    is_taken: bool
    """Whether the model goes on as it was converted; else it goes on as before."""


ToReplica = Work | Generate | Cancel | Adopt | Shutdown
FromReplica = (
    Loading
    | Loaded
    | LoadFailed
    | Parts
    | Progress
    | Result
    | Failure
    | Cancelled
    | Heartbeat
    | Calibrated
    | Adopted
)
Send = Callable[[FromReplica, bytes | None], None]
"""Gives the gateway a message and the raw frame that follows it, from any thread."""


_packing: Packing[ToReplica] = Packing(ToReplica)
pack = _packing.pack
unpack = _packing.unpack
