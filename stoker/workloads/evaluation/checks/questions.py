"""Questions to the process that judges answers. Imports little, because the gateway imports it."""

import msgspec


class CheckSchemas(msgspec.Struct, frozen=True, tag=True):
    """Asks which schemas cannot be used. The answer is a list of reasons, empty if all can be
    used.
    """

    schemas: bytes
    """List of schemas as JSON."""


class CompareAnswer(msgspec.Struct, frozen=True, tag=True):
    """Asks how an answer differs from its expectations. The answer is a list of one text."""

    expect: bytes
    """The `Expect` as JSON."""
    content: bytes
    is_written: bool
