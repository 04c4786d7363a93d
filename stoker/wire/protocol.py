"""Protocol between the gateway and a replica: msgpack messages over a socket, never pickles.

A message is one frame with the msgpack head, followed by raw frames if the head says so. The
replica's side imports only the standard library, msgspec, pydantic and its engine.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Literal

import msgspec

from stoker.base.fairness import Tier
from stoker.base.media_limits import MediaLimits
from stoker.sandbox.openings import Opening
from stoker.wire.generation_request import Generation
from stoker.wire.notices import Notice
from stoker.wire.packing import Packing
from stoker.wire.passes import Batches, RecordedPasses
from stoker.wire.sleep import Moved, Sleep, Wake

Speculation = Literal["prompt_lookup", "off"]
"""Method of guessing the next tokens, for language models that we schedule."""
Precision = Literal["f32", "bf16", "i8"]
"""Precision in which OpenVINO computes, by its names. Parts that `i8` does not cover stay in
float32.
"""
BYTECODE = "bytecode"
"""Subfolder for bytecode in the cache of an engine with a separate environment. The environment may
not be written to.
"""


class OwnEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Location of an engine that cannot be installed in our Python environment."""

    python: str
    """Path of its interpreter."""
    cache_dir: str
    """Folder with the bytecode of its packages, readable by replicas."""
    gpu_share: float
    """Share of a GPU's memory that a replica may use, as claimed if GPU memory is budgeted."""
    compiled_dir: str = ""
    """Folder for code that the engine compiles for a GPU. Each deployment has a separate one,
    because others would execute its content.
    """


class Cell(msgspec.Struct, frozen=True):
    """Resources that belong to one process that runs a model."""

    folder: str
    """Folder for all files that the process writes. It is deleted with the process."""
    user: int | None
    """User that the process switches to if root starts it."""
    kept_back: str
    """The server's data folder. The process may access only the paths in it that other settings
    name.
    """


class Sharing(StrEnum):
    """Samples of a model that may share a forward pass. Sharing must not change an answer."""

    PADDED = "padded"
    """Samples of any length, padded. Lengths are rounded up."""
    PACKED = "packed"
    """Samples of any length, padded only around the model's layers. The layers compute the tokens
    of all samples in one row without padding.
    """

    PAGED = "paged"
    """Sequences of a language model in one row, over blocks of keys and values."""
    SAME_LENGTH = "same_length"
    """Samples of equal length, unchanged."""
    ALONE = "alone"
    """No samples share a pass."""
    ONE_PIECE = "one_piece"
    """No samples share a pass, and a language model computes a prompt in one pass."""

    @property
    def is_padded(self) -> bool:
        """True if samples of different lengths share a pass."""
        return self in {Sharing.PADDED, Sharing.PACKED}


class ChosenPrecision(msgspec.Struct, frozen=True):
    """Precision that `auto` chose for a model after a comparison with float32."""

    dtype: Literal["float32", "bfloat16", "float16"]
    message: str
    """The choice and the measured difference, as sentences for the deployment's owner."""


class Execution(msgspec.Struct, frozen=True):
    """Execution of a model on OpenVINO, as verified by a `ConversionTrial`."""

    folder: str
    """Folder of the converted model."""
    precision: Precision
    cache_dir: str
    """Folder for compiled code. It applies to this processor only, like the trial."""


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All information about a deployment that its replica receives."""

    id: str
    pipeline: str
    model_dir: str
    address: str
    log_path: str
    flight_path: str
    engine: str
    device: str
    visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES: only the graphics devices that the replica has claimed. None means that
    devices are not counted.
    """
    device_bytes: int | None = None
    """Bytes of each device that the replica has claimed, without CUDA's context. None means that
    devices are not counted.
    """
    dtype: str
    threads: int
    batch_budgets: dict[str, int]
    """Maps an engine to its measured batch cost. Missing engines are measured."""
    limits: MediaLimits
    sharing: Sharing | None = None
    """Samples that may share a forward pass, if this was determined earlier."""
    precision: ChosenPrecision | None = None
    """Precision of an `auto` dtype, if it was chosen earlier."""
    execution: Execution | None = None
    """Execution on OpenVINO, if the model was already converted and tried."""
    environment: OwnEnvironment | None = None
    """Environment of an engine that needs a separate one."""
    cell: Cell
    secret_path: str
    """Path of a file with the secret that proves the replica's identity. The replica removes the
    file.
    """
    conversions: str = ""
    """Folder of the model's conversions, which the replica may be instructed to adopt."""
    turns_with: str = ""
    """Group of replicas that compute one after the other. Empty means no group."""
    cache_bytes: int = 2 << 30
    """Maximum bytes for a language model's keys and values on a CPU."""
    options: dict[str, Any] = {}
    """The deployment's `config`: options of its engine."""
    notices: list[Notice] = []
    """Notices of the server for the model's owner."""
    adapters: str = ""
    """Folder with adapters that requests may name. Adapters may be added or removed. Empty means
    none.
    """
    adapter_bytes: int = 256 << 20
    """Maximum bytes for adapters that are kept loaded."""
    sleeps: bool = False
    """True if an engine in a separate environment prepares to move the model to main memory."""
    openings: list[Opening] = []
    """Exceptions from the walls that the GPU's driver needs. Ignored without a GPU."""
    preparation_processes: int = 0
    """Maximum number of processes of all replicas of the machine that prepare inputs. 0: the
    replica has none.
    """
    lost_recordings: list[str] = []
    """Names of passes that ended earlier replicas while they were recorded."""
    idle_heartbeat_s: float = 1.0
    """Seconds between two heartbeats while it has no work and nothing changes."""


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Process that opens a context on a GPU and waits for the specification of a replica."""

    id: str
    device: str
    """`cuda`, or `cpu` for no context."""
    visible_devices: str
    """CUDA_VISIBLE_DEVICES: the only GPU of the worker."""
    cell: Cell
    models: str
    """Empty folder that the worker may read. The files of its model are linked into it later."""
    preparation_processes: int = 0
    """The same as in `ReplicaSpec`."""
    openings: list[Opening] = []
    """Exceptions from the walls that the GPU's driver needs."""


# --- gateway → replica ---


class Work(msgspec.Struct, frozen=True, tag="work"):
    """Request of a task. The raw frames are the contents of the media in its items."""

    id: int
    task: str
    items: list[Any]
    parameters: dict[str, Any]
    """Parameters for the stages, in addition to each item."""
    single: bool
    """True: the answer is the result of a single item. False: a list of results."""
    finishing: dict[str, Any] = {}
    """Parameters for the task, once every item has its result."""
    stream: bool = False
    """True: the answer is sent in `Parts` as it is generated. It then has one item."""
    key: str = ""
    """API key of the caller. Different keys take turns."""
    adapter: str = ""
    """Folder in `ReplicaSpec.adapters` of the adapter to apply."""
    tier: Tier = Tier.DEFAULT


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    id: int
    generation: Generation
    key: str = ""
    """API key of the caller, as in `Work`."""
    tier: Tier = Tier.DEFAULT


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """No caller waits for the answer. `Cancelled` reports the work that was done."""

    id: int


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Requests that the replica continues with the converted model."""

    execution: Execution


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Requests that the replica answers accepted requests and then ends."""


# --- replica → gateway ---


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Progress of a load, 0 to 1, and the name of the step."""

    progress: float
    stage: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The replica accepts requests from now on. Contains the duration of the load in seconds."""

    seconds: float
    convertible: bool
    """True if a conversion may be tried."""
    sharing: Sharing | None = None
    """Samples that may share a forward pass, if this was determined."""
    notices: list[Notice] = []
    """Notices for the model's owner."""
    precision: ChosenPrecision | None = None
    """Precision of an `auto` dtype, if one was chosen."""
    device: str = ""
    """Device of the loaded weights, as torch names it in the replica. Empty if unknown."""
    device_problem: str = ""
    """Reason that the model runs on the CPU although a GPU was claimed for it. Empty if it does
    not.
    """
    sleep_bytes: int | None = None
    """Bytes of main memory that the model needs to sleep by itself (see `Sleep`). None if it
    cannot.
    """


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    message: str
    out_of_memory: bool = False
    lasting: bool = False
    """True if waiting cannot help: a package is missing, or a class does not fit the files."""


class RequestResult(msgspec.Struct, frozen=True, tag="result"):
    """Answer to a request. One raw frame follows: the answer, or the rest of a streamed one."""

    id: int
    counts: dict[str, int] = {}
    """Amount of processed data: `input_tokens`, `output_tokens`, `images`, `audio_ms`,
    `video_ms`.
    """
    times: dict[str, int] = {}
    """Maps a phase to its microseconds, in sequence: `prepare`, then `queue` and `forward`, or
    `first_token` (with its queue) and `decode`, then `finish`.
    """


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """Answers a `Cancel`, unless the request was answered before."""

    id: int
    counts: dict[str, int] = {}
    """Amount of data processed before, as in `RequestResult.counts`."""


class Parts(msgspec.Struct, frozen=True, tag="parts"):
    """Pieces of streamed answers. One raw frame with the next pieces in sequence follows.

    A `RequestResult` or a `RequestFailure` ends each answer.
    """

    ids: list[int]
    sizes: list[int]
    """Size of each piece in bytes."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Progress of work with many steps."""

    id: int
    fraction: float


class RequestFailure(msgspec.Struct, frozen=True, tag="failure"):
    """Answers a request that failed."""

    id: int
    code: str
    """Error code. `invalid_request`, `invalid_media` or `context_length_exceeded` for an input,
    `template_failed` or `inference_failed` for the model.
    """
    message: str
    param: str | None


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Activity and memory of a replica, sent once a second, and less often while it is idle."""

    progress: int
    """Number of completed steps. Accepted work without growth means a hang."""
    accepted: int
    """Number of unanswered requests and of threads that are still working. Cancelled work counts
    until its thread stops.
    """
    memory_bytes: int
    """Proportional set size in bytes: shared pages count by share."""
    own_bytes: int
    """Unique set size in bytes: memory that would be free if the replica ended. 0 before the first
    pass, because passes map the weights.
    """
    busy_s: float
    """Seconds spent in forward passes since the start."""
    engine: str
    cache_usage: float | None
    """For language models, the share of the key-value cache that requests hold."""
    batches: Batches
    stuck_s: float = 0.0
    """Seconds for which one of its threads has had work and made no step, regardless of other
    threads.
    """
    is_settled: bool = True
    """True if the replica has no measurements left for idle time and cannot become faster."""
    device_bytes: int | None = None
    """Bytes that torch holds of the graphics device with the largest use. None means unknown."""
    recorded: RecordedPasses = RecordedPasses()


class Calibrated(msgspec.Struct, frozen=True, tag="calibrated"):
    """Measured batch budget in padded tokens, which is stored for later replicas."""

    engine: str
    batch_budget: int


class PrecisionChanged(msgspec.Struct, frozen=True, tag="precision_changed"):
    """The precision of an `auto` dtype was not suitable. Later replicas begin with the new one."""

    precision: ChosenPrecision


class Adopted(msgspec.Struct, frozen=True, tag="adopted"):
    """Result of an `Adopt`."""

    is_taken: bool
    """True if the replica continues with the converted model, False if it continues as before."""


ToReplica = Work | Generate | Cancel | Adopt | Sleep | Wake | Shutdown
FromReplica = (
    Loading
    | Loaded
    | LoadFailed
    | Parts
    | Progress
    | RequestResult
    | RequestFailure
    | Cancelled
    | Heartbeat
    | Calibrated
    | PrecisionChanged
    | Adopted
    | Moved
)
Send = Callable[[FromReplica, bytes | None], None]
"""Sends the gateway a message and the raw frame that follows it, from any thread."""


_packing: Packing[ToReplica] = Packing(ToReplica)
pack = _packing.pack
unpack = _packing.unpack
