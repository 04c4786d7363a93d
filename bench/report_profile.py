"""Tables of a request's processor time by stage, for the page of `bench path`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bench.report_results import side_by_side

Series = Sequence[Mapping[str, Any]]

STAGES: Mapping[str, Mapping[str, str]] = {
    "gateway": {
        "edge": "connections, HTTP heads, middlewares",
        "key": "key, rate limits, credit",
        "parse": "body, limits of its structure, media",
        "validate": "pydantic and the operation",
        "route": "deployment, version, queue, choice of a replica, check for a disconnect",
        "send": "messages to the replica",
        "receive": "messages from the replica",
        "write": "head and body of the response",
        "count": "usage, metrics and events",
        "log": "log line of the request",
        "loop": "uvloop itself: reads and writes of sockets, epoll",
        "other": "everything else; the notes list its frames",
    },
    "replica": {
        "receive": "messages from the gateway",
        "prepare": "tokenizing, chat template, decoding and resizing of images",
        "batch": "queues, batch selection, scheduler, turns to compute",
        "collate": "tensors of a batch, and rows of its outputs",
        "pass": "the engine, with its worker threads",
        "draw": "sampling of tokens",
        "post": "results",
        "encode": "JSON of the results",
        "send": "messages to the gateway",
        "wait": "sleep and wake-up of threads, in the kernel and at the interpreter's lock",
        "other": "everything else; the notes list its frames",
    },
}
"""Maps the stages of each side to their meaning, in the order of a request."""
_STAGE = re.compile(r"(?P<clients>[0-9]+ clients?), (?P<side>[a-z]+): (?P<stage>[a-z]+)")
_HIDDEN = (", user", ", system")
"""Ends of the labels of series that the page leaves out."""


def legend() -> list[str]:
    """Returns a table for each side that explains its stages."""
    lines: list[str] = []
    for side, stages in STAGES.items():
        lines += [f"| {side} | work |", "| --- | --- |"]
        lines += [f"| {stage} | {meaning} |" for stage, meaning in stages.items()]
        lines.append("")
    return lines


def totals(columns: Mapping[str, Series]) -> list[str]:
    """Returns the table of the series that are not stages, without their user and system parts."""
    return side_by_side(
        {
            title: [
                entry
                for entry in series
                if not _STAGE.fullmatch(entry["label"]) and not entry["label"].endswith(_HIDDEN)
            ]
            for title, series in columns.items()
        }
    )


def stages(side: str, columns: Mapping[str, Series]) -> list[str]:
    """Returns the table of a side's stages and their total, in the order of a request.

    Args:
        columns: maps a column's title to the series of a result.
    """
    return side_by_side({title: _of_side(side, series) for title, series in columns.items()})


def _of_side(side: str, series: Series) -> list[dict[str, Any]]:
    """Returns the series of all stages of a side, and of their total, with short labels."""
    by_stage: dict[str, dict[str, Any]] = {}
    total = ""
    for entry in series:
        match = _STAGE.fullmatch(entry["label"])
        if match and match["side"] == side:
            by_stage[match["stage"]] = {**entry, "label": match["stage"]}
            total = f"{match['clients']}, {side}"
    # Results of other versions may have other stages.
    order = [*STAGES[side], *(stage for stage in by_stage if stage not in STAGES[side])]
    sums = [{**entry, "label": "total"} for entry in series if entry["label"] == total]
    return [*(by_stage[stage] for stage in order if stage in by_stage), *sums]
