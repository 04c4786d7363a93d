"""Questions to the process that judges answers. Light: the gateway imports it."""

import msgspec


class Schemas(msgspec.Struct, frozen=True, tag=True):
    """Which of these cannot be used? The answer is a list of reasons, empty if there is none."""

    schemas: bytes
    """A list, as JSON."""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """What is not as expected of this answer? The answer is a list of one text."""

    expect: bytes
    """As JSON."""
    content: bytes
    is_written: bool
