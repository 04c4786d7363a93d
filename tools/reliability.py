"""`python -m tools.reliability`: writes docs/reliability.md from the reports in docs/reliability.

A report is what one of the tools has seen: `tools.soak`, `tools.fuzz`, `tools.fuzz_formats` and
`bench`. The page says nothing that is in none of them.
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

What was tried, and what was seen. `python -m tools.reliability` writes this page from the reports
in [reliability](reliability), which the tools named here have written: it has no figure that is
in none of them. What was found stands at its end. What is tried with every change is in the
tests; [security_cases.md](security_cases.md) and [faults.md](faults.md) list them.
"""
SOAK = """\
## Callers and faults at once

`make soak MINUTES=30 SEED=1`: models are uploaded (and uploads cut at any byte), deployed,
changed and deleted; every task is called and each answer held against the first one; streams are
read to the end or cut; videos and runs of agents are made and deleted; keys are made and revoked;
rude connections come. Meanwhile replicas, the engine host and the server are killed, replicas
halted, the disk filled, the clock set up to two hours off. In the end everything is deleted: then
there may be no row, file, process or descriptor left, the ledger has to balance, and nothing that
was acknowledged may be missing.
"""
FUZZ = """\
## Calls that are made up

`make fuzz CALLS=20 SEED=1`: calls made from the OpenAPI document, with the keys of an account, of
a deployment, of the operator and of nobody: at the edges of what it allows and beyond them, and
near to good calls of models that run. A status or a body that is not documented, an answer of 500,
and a step of the event loop that computes for more than 100 ms are failures.
"""
FORMATS = """\
## Files and streams that are made up

`make fuzz-formats EXAMPLES=200 SEED=1`: valid ones, changed where it hurts. What is accepted has
to be accepted with the same meaning by the format's own library or a plain reference; what is
refused, with our own error.
"""
LOAD = """\
## Load

`make bench BENCH="{name} --rounds 3"`, {title}:
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
    parts += [_load(found) for name in ("overload", "many_streams") if (found := _found(name))]
    parts.append((REPORTS / "found.md").read_text())
    return "\n".join(parts)


def _soaks(soaks: Sequence[Mapping[str, Any]]) -> str:
    names = [f"[seed {one['seed']}](reliability/soak-{one['seed']}.md)" for one in soaks]
    rows: list[tuple[str, list[object]]] = [
        ("minutes", [f"{one['minutes']:g}" for one in soaks]),
        ("requests", [one["requests"] for one in soaks]),
        ("faults", [sum(one["faults"].values()) for one in soaks]),
        ("lives of the server", [one["lives"] for one in soaks]),
        ("lost, or seen that may not be", [one["lost"] for one in soaks]),
        ("answers of 500", [one["answers"].get("500", 0) for one in soaks]),
        ("memory of one life, minutes watched", [f"{one['steady_minutes']:.0f}" for one in soaks]),
        ("its growth, MiB", [f"{one['growth_mib'] or 0:+.0f}" for one in soaks]),
        ("longest step of its event loop, ms", [_longest_ms(one) for one in soaks]),
    ]
    lines = [_row(["", *names]), _row(["---"] * (len(soaks) + 1))]
    lines += [_row([name, *values]) for name, values in rows]
    faults, done = Counter[str](), Counter[str]()
    for one in soaks:
        faults.update(one["faults"])
        done.update(one["done"])
    losses = [f"- seed {one['seed']}, {loss}" for one in soaks for loss in one["losses"]]
    lost = ["", "What was lost, or seen that may not be:", "", *losses] if losses else []
    machines = {one["machine"] for one in soaks}
    return "\n".join(
        [
            *lines,
            "",
            f"In all, faults: {_counted(faults)}. Done and acknowledged: {_counted(done)}.",
            *lost,
            "",
            f"On {'; '.join(sorted(machines))}; others ran beside each.",
            "",
        ]
    )


def _longest_ms(soak: Mapping[str, Any]) -> str:
    return f"{1000 * soak['lag']['longest_step_s']:.0f}"


def _fuzz(found: Mapping[str, Any]) -> str:
    good = sum(count for status, count in found["answers"].items() if status < "300")
    answers = ", ".join(f"{status}: {count:,}" for status, count in found["answers"].items())
    return (
        f"{found['calls']:,} calls in {found['seconds']:,} s, {good:,} of them answered with 2xx "
        f"({answers}). Answers of 500 or without an answer: {found['server_errors']}. Keys with "
        f"which something was not as documented: {len(found['keys_that_failed'])}. Steps of the "
        f"event loop above 100 ms: {len(found['held_loop'])}; the longest computed for "
        f"{found['longest_step_ms']} ms.\n"
    )


def _formats(found: Mapping[str, Any]) -> str:
    heads = ["what", "inputs", "accepted", "refused", "properties that failed"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for name, one in sorted(found["formats"].items()):
        counts = Counter[str]()
        for property_ in one["properties"].values():
            counts.update(property_)
        values = [counts["tried"], counts["accepted"], counts["refused"], len(one["failed"])]
        lines.append(_row([name.replace("_", " "), *values]))
    return "\n".join(lines) + "\n"


def _load(found: Mapping[str, Any]) -> str:
    machine = found["machine"]
    lines = [
        LOAD.format(name=found["name"], title=found["title"]),
        _row(["", "median", "least", "most", "", "aim"]),
        _row(["---"] * 6),
    ]
    for one in found["series"]:
        values = [f"{one[name]:.3g}" for name in ("median", "min", "max")]
        aim = f"{one['aim']}: {one['verdict']}" if one["aim"] else ""
        lines.append(_row([one["label"], *values, one["unit"], aim]))
    lines += ["", *(f"{note}" for note in found["notes"])]
    lines.append(f"On {machine['cores']} cores, {machine['cpu']}, {found['rounds']} rounds.")
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
