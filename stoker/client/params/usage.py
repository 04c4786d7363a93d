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
    memory_microcredits_per_gib_hour: Required[int]
    storage_microcredits_per_gib_month: Required[int]
    """A month has 30 days."""
