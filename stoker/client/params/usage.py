# `python -m tools.client_api` writes this file.
"""Parameters of usage, from the OpenAPI document."""

from typing import Required, TypedDict


class GrantCreateParams(TypedDict, total=False):
    amount_microcredits: Required[int]
    """A million is one credit. Negative only with `correction`."""
    correction: bool
    """True takes credit back. The amount must then be negative."""
    note: str | None


class PriceCreateParams(TypedDict, total=False):
    effective_from: str | None
    """A full hour in the future; default: the next one."""
    flex_microcredits_per_gib_hour: int | None
    """Price of memory while it serves background work only. At most that of memory; default:
    half of it.
    """
    memory_microcredits_per_gib_hour: Required[int]
    storage_microcredits_per_gib_month: Required[int]
    """A month has 30 days."""
