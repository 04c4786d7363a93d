"""Enumerations that later releases extend."""

from enum import StrEnum
from typing import Self


class OpenEnum(StrEnum):
    """An enumeration in stored rows and in messages between processes.

    A value that a later release has added becomes a member with the value as its name. Requests
    from outside must not use such a type, because it accepts every text.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_, member._value_ = value, value
        return member
