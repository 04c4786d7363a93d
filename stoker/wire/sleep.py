"""Messages that move a model's GPU memory to main memory and back.

The gateway sends them to a replica, and the replica to the child process that runs vLLM. The child
imports this module, so it may import only the standard library and msgspec.
"""

import msgspec


class Sleep(msgspec.Struct, frozen=True, tag="sleep"):
    """Moves the weights to main memory and frees the key-value cache. No sequence may run.

    Answered by `Moved`.
    """


class Wake(msgspec.Struct, frozen=True, tag="wake"):
    """Moves the weights back to the GPU. Answered by `Moved`."""


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """Answers `Sleep` and `Wake`."""

    error: str = ""
    """Reason why the weights could not be moved. The process must be ended then."""
    held_bytes: int = 0
    """Bytes that a sleeping model still holds of each GPU, without CUDA's context."""
