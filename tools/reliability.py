"""`python -m tools.reliability`: writes docs/reliability.md from the reports in docs/reliability.

`tools.soak`, `tools.fuzz`, `tools.fuzz_formats` and `bench` write the reports. Every figure of the
page comes from a report.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
REPORTS = ROOT / "docs" / "reliability"

HEAD = """\
# Reliability

Results of soak tests, fuzzing and load tests. `python -m tools.reliability` generates this page
from the reports in [reliability](reliability); every figure comes from a report.
[Faults found](reliability/found.md) lists the faults that these tests found, with their fixes.
[security_cases.md](security_cases.md) and [faults.md](faults.md) list the tests of each change.
"""
SOAK = """\
## Soak tests

Run one with `make soak MINUTES=30 SEED=1`. Clients and faults run at once:

- **Clients** upload, deploy, change and delete models, and cut uploads at any byte. They call every
  task and compare each answer with the first one. They read streams to the end or cut them. They
  create and delete videos, agents' runs and keys, and open misbehaving connections.
- **Faults** kill replicas, the engine host and the server. They halt replicas, fill the disk and
  move the clock by up to two hours.
- **At the end** everything is deleted. No row, file, process or descriptor may remain. The ledger
  must balance, and no acknowledged object may be missing.
"""
FUZZ = """\
## API fuzzing

Run it with `make fuzz CALLS=20 SEED=1`. The calls are generated from the OpenAPI document, within
and beyond its limits, and by changing valid calls of deployed models. They use keys of an account,
a deployment and the operator, and no key. Failures are an undocumented status or body, a status
500, and an event loop step that computes for more than 100 ms.
"""
FORMATS = """\
## Format fuzzing

Run it with `make fuzz-formats EXAMPLES=200 SEED=1`. The inputs are valid files and streams with
damaged structure. An accepted input must have the same meaning to the format's own library or a
reference implementation. A rejected input must fail with a documented error.
"""
LOAD = """\
## Load test: {name}

Run it with `make bench BENCH="{name} --rounds 3"`: {title}.
"""


def page() -> str:
    soaks = [_read(path) for path in sorted(REPORTS.glob("soak-*.json"))]
    parts = [HEAD]
    if soaks:
        parts += [SOAK, _soaks(soaks)]
    if fuzz := _found("fuzz"):
        parts += [FUZZ, _fuzz(fuzz)]
    if formats := _found("formats"):
        parts += [FORMATS, _formats(formats)]
    parts += [_load(report) for name in ("overload", "many_streams") if (report := _found(name))]
    return "\n".join(parts)


def _soaks(soaks: Sequence[Mapping[str, Any]]) -> str:
    names = [f"[seed {soak['seed']}](reliability/soak-{soak['seed']}.md)" for soak in soaks]
    rows: list[tuple[str, list[object]]] = [
        ("minutes", [f"{soak['minutes']:g}" for soak in soaks]),
        ("requests", [soak["requests"] for soak in soaks]),
        ("faults", [sum(soak["faults"].values()) for soak in soaks]),
        ("server processes", [soak["lives"] for soak in soaks]),
        ("violations", [soak["lost"] for soak in soaks]),
        ("responses with status 500", [soak["answers"].get("500", 0) for soak in soaks]),
        (
            "memory of one server process, minutes observed",
            [f"{soak['steady_minutes']:.0f}" for soak in soaks],
        ),
        ("memory growth, MiB", [f"{soak['growth_mib'] or 0:+.0f}" for soak in soaks]),
        ("longest event loop step, ms", [_longest_ms(soak) for soak in soaks]),
    ]
    lines = [_row(["", *names]), _row(["---"] * (len(soaks) + 1))]
    lines += [_row([name, *values]) for name, values in rows]
    faults, done = Counter[str](), Counter[str]()
    for soak in soaks:
        faults.update(soak["faults"])
        done.update(soak["done"])
    losses = [f"- seed {soak['seed']}, {loss}" for soak in soaks for loss in soak["losses"]]
    lost = ["", "Violations:", "", *losses] if losses else []
    machines = {soak["machine"] for soak in soaks}
    return "\n".join(
        [
            *lines,
            "",
            f"Faults in total: {_counted(faults)}.",
            "",
            f"Acknowledged operations: {_counted(done)}.",
            *lost,
            "",
            f"Machine: {'; '.join(sorted(machines))}. Other work ran at the same time.",
            "",
        ]
    )


def _longest_ms(soak: Mapping[str, Any]) -> str:
    return f"{1000 * soak['lag']['longest_step_s']:.0f}"


def _fuzz(found: Mapping[str, Any]) -> str:
    good = sum(count for status, count in found["answers"].items() if status < "300")
    answers = ", ".join(f"{status}: {count:,}" for status, count in found["answers"].items())
    return (
        f"{found['calls']:,} calls in {found['seconds']:,} s, {good:,} with a 2xx status.\n\n"
        f"- Statuses: {answers}.\n"
        f"- Status 500 or no response: {found['server_errors']}.\n"
        f"- Keys with undocumented responses: {len(found['keys_that_failed'])}.\n"
        f"- Event loop steps above 100 ms: {len(found['held_loop'])}; the longest computed for "
        f"{found['longest_step_ms']} ms.\n"
    )


def _formats(found: Mapping[str, Any]) -> str:
    heads = ["format", "inputs", "accepted", "rejected", "failed properties"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for name, entry in sorted(found["formats"].items()):
        counts = Counter[str]()
        for property_ in entry["properties"].values():
            counts.update(property_)
        values = [counts["tried"], counts["accepted"], counts["refused"], len(entry["failed"])]
        lines.append(_row([name.replace("_", " "), *values]))
    return "\n".join(lines) + "\n"


def _load(found: Mapping[str, Any]) -> str:
    machine = found["machine"]
    lines = [
        LOAD.format(name=found["name"], title=found["title"]),
        _row(["", "median", "minimum", "maximum", "unit", "target"]),
        _row(["---"] * 6),
    ]
    for series in found["series"]:
        values = [f"{series[name]:.3g}" for name in ("median", "min", "max")]
        aim = f"{series['aim']}: {series['verdict']}" if series["aim"] else ""
        lines.append(_row([series["label"], *values, series["unit"], aim]))
    lines += ["", *(f"- {note}" for note in found["notes"])]
    lines.append(f"- {found['rounds']} rounds on {machine['cores']} cores, {machine['cpu']}.")
    return "\n".join(lines) + "\n"


def _found(name: str) -> dict[str, Any]:
    path = REPORTS / f"{name}.json"
    return _read(path) if path.exists() else {}


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    PAGE.write_text(page())
