# `python -m tools.client_api` writes this file.
"""Parameters of usage, from the OpenAPI document."""

from typing import Required, TypedDict


class GrantCreateParams(TypedDict, total=False):
    amount_microcredits: Required[int]
    correction: bool
    note: str | None


class PriceCreateParams(TypedDict, total=False):
    effective_from: str | None
    memory_microcredits_per_gib_hour: Required[int]
    storage_microcredits_per_gib_month: Required[int]
