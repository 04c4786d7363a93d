"""Writes the page of `bench path`: each call, before and now, on each class of processors."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.path_calls import CALLS, PathCall
from bench.report_profile import STAGES, legend, stages, totals
from bench.report_results import (
    Result,
    Results,
    class_of,
    described,
    file_name,
    title_of_class,
)

NAME = "path"
"""Name of the page and of the benchmark of all calls."""
HEAD = """\
# Processor time of a call, by stage

`make bench BENCH=path` calls tiny models, so that nearly all processor time is the server's own.
[bench/README.md](../../bench/README.md) describes the method. "Before" is the state before any
optimization of these figures.

Aims with 16 clients: at most 250 µs of processor time per request in the gateway, 25 µs per
streamed token in the gateway, and 250 µs per request in the replica without its pass.

Tables show the median of the rounds, and the minimum and maximum. Stages are measured with
16 clients.
"""


def is_path(name: str) -> bool:
    return name in CALLS


def page(results: Results, before: Results) -> str:
    """Returns the page of all calls."""
    parts = [HEAD, *legend()]
    for name, call in CALLS.items():
        if name in results:
            parts += [f"## {_capitalised(call.title)}", ""]
            parts += _section(name, call, results[name], before.get(name, ()))
    return "\n".join(parts)


def _section(
    name: str, call: PathCall, results: Sequence[Result], before: Sequence[Result]
) -> list[str]:
    earlier = {class_of(result): result for result in before}
    lines: list[str] = []
    columns: dict[str, Sequence[Mapping[str, Any]]] = {}
    for result in results:
        title = title_of_class(result)
        old = earlier.get(class_of(result))
        is_new = old is None or old["finished_at"] != result["finished_at"]
        if old and is_new:
            columns[f"{title}, before"] = old["series"]
            lines.append(f"- {title}, before: {described(name, old)}")
        state = "now" if is_new else "before"
        columns[f"{title}, {state}"] = result["series"]
        lines.append(f"- {title}, {state}: {described(name, result)}")
    lines += ["", *totals(columns), ""]
    for side in STAGES:
        lines += [f"### {_capitalised(call.title)}: stages of the {side}", ""]
        lines += [*stages(side, columns), ""]
    for result in results:
        stem = file_name(name, result)
        lines += [f"All figures: [{stem}.json]({stem}.json).", ""]
        lines += [*(f"- {note}" for note in result["notes"]), ""]
    return lines


def _capitalised(title: str) -> str:
    return title[0].upper() + title[1:]
