"""Grouping of a usage report, and the start of its pages."""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import orjson

from stoker.base.errors import InvalidRequestError
from stoker.base.fairness import Tier
from stoker.store.tables.usage import Holding, Kind

Group = Literal["deployment", "version", "day", "hour", "key", "tier"]
GROUPS: tuple[Group, ...] = get_args(Group)
MOST_TEXT = 64
PATTERN = "^({0})(,({0}))*$".format("|".join(GROUPS))

HOURS_A_DAY = 24
TIMES: tuple[Group, ...] = ("day", "hour")
_EITHER: tuple[tuple[Group, ...], ...] = (TIMES, ("deployment", "version"), ("key",), ("tier",))
"""Groups that exclude each other: an hour implies its day, and a version its deployment."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_HOUR = 10**8

Value = int | str | None
"""Value of a group: a day or an hour since 1970, or an id. None if the usage belongs to none."""
Key = tuple[Value, ...]


@dataclass(frozen=True)
class Grouping:
    groups: tuple[Group, ...]
    """Groups in sort order of the rows. Usage that belongs to none comes last."""

    @classmethod
    def of(cls, text: str) -> "Grouping":
        """Parses a query such as `day,deployment`. Raises `InvalidRequestError`."""
        requested = tuple(text.split(","))
        if len(text) > MOST_TEXT or not set(requested) <= set(GROUPS):
            raise InvalidRequestError(
                f"'group_by' must be one or more of {', '.join(GROUPS)}, separated by "
                "commas, as in day,deployment.",
                param="group_by",
            )
        for names in _EITHER:
            conflicting = [group for group in requested if group in names]
            if len(conflicting) > 1:
                raise InvalidRequestError(
                    f"'group_by' takes {' or '.join(names)} once, not {' and '.join(conflicting)}.",
                    param="group_by",
                )
        return cls(tuple(group for text in requested for group in GROUPS if group == text))

    def __str__(self) -> str:
        return ",".join(self.groups)

    def __contains__(self, group: Group) -> bool:
        return group in self.groups

    def key_of(self, row: Holding) -> Key:
        """Returns the key of a worker's or an artifact's holding."""
        values: dict[Group, Value] = {
            "deployment": row.deployment_id,
            "version": row.version_id,
            "day": row.hour // HOURS_A_DAY,
            "hour": row.hour,
            "key": None,
            "tier": Tier.FLEX.value if row.kind == Kind.FLEX else None,
        }
        return tuple(values[group] for group in self.groups)

    def hours(self, key: Key) -> tuple[int, int] | None:
        """Returns the first hour of a row and the hour after its last. None means all requested
        hours.
        """
        for group, value in zip(self.groups, key, strict=True):
            if group in TIMES and isinstance(value, int):
                length = HOURS_A_DAY if group == "day" else 1
                return value * length, (value + 1) * length
        return None

    def value(self, group: Group, key: Key) -> Any:
        """Returns the key's value for a group. None if the report is not grouped by it."""
        return key[self.groups.index(group)] if group in self.groups else None

    def page_after(self, key: Key) -> str:
        """Returns the token of the page that starts after this row."""
        return base64.urlsafe_b64encode(orjson.dumps(key)).decode().rstrip("=")

    def page_begin(self, page: str) -> Key:
        """Returns the key that `page_after` encoded. Raises `InvalidRequestError`."""
        try:
            padded = page + "=" * (-len(page) % 4)
            key: Any = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        except (binascii.Error, ValueError):
            key = None
        if not isinstance(key, list) or not self._is_key(key):  # pyright: ignore[reportUnknownArgumentType]
            raise InvalidRequestError(
                "'page' must be the 'next_page' of a report by the same groups.", param="page"
            )
        return tuple(key)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]

    def _is_key(self, values: Sequence[Any]) -> bool:
        if len(values) != len(self.groups):
            return False
        for group, value in zip(self.groups, values, strict=True):
            if group in TIMES:
                if type(value) is not int or not 0 <= value < _MOST_HOUR:
                    return False
            elif value is not None and not (isinstance(value, str) and _ID.fullmatch(value)):
                return False
        return True
