"""Writes the tables of docs/security_cases.md: known vulnerabilities of similar servers, Stoker's
protection, and the tests that try them. A test names its cases with the marker `case`.

`python -m tools.security_cases` writes the page. tests/test_security_cases.py compares it.
"""

from dataclasses import dataclass
from pathlib import Path

from tools.marks import ROOT, marked, shown
from tools.mutations import MUTATIONS

PAGE = ROOT / "docs" / "security_cases.md"


@dataclass(frozen=True)
class Case:
    name: str
    seen: str
    """Identifiers of known occurrences at osv.dev/vulnerability/ID."""
    answer: str


CASES: dict[int, Case] = {
    1: Case(
        "pickle in a model",
        "CVE-2025-32434, CVE-2026-24747",
        "weights are safetensors or GGUF, told by content; nothing is unpickled",
    ),
    2: Case(
        "scanner evasion",
        "CVE-2025-10156, CVE-2025-1945, CVE-2026-14534",
        "no scanner: content that is not known is refused",
    ),
    3: Case(
        "remote code",
        "CVE-2026-22807, CVE-2026-27893, CVE-2026-5241",
        "programs, and keys that name code at any depth, are refused at inspection",
    ),
    4: Case(
        "other unsafe formats",
        "CVE-2025-1550, CVE-2025-8747",
        "not accepted",
    ),
    5: Case(
        "template code execution",
        "CVE-2024-34359, CVE-2024-2952, CVE-2026-5760",
        "an immutable sandbox, for templates of GGUF files, too",
    ),
    6: Case(
        "template denial of service",
        "CVE-2026-115911, CVE-2025-62426",
        "no templates in requests, variables only that the template knows, limits of time and size",
    ),
    7: Case(
        "archives",
        "CVE-2026-27905, CVE-2025-4517, CVE-2024-45436",
        "not accepted",
    ),
    8: Case(
        "names and paths",
        "CVE-2024-37032, CVE-2026-24486",
        "the server names blobs; each part of a path is validated, twice",
    ),
    9: Case(
        "lying headers",
        "CVE-2026-7482",
        "sizes, counts, bounds, overlaps, types and shapes are checked before any load",
    ),
    10: Case(
        "fetching media",
        "CVE-2025-6242, CVE-2026-24779, CVE-2026-25960, CVE-2026-34753, CVE-2026-33626, "
        "CVE-2026-63764, CVE-2026-108719",
        "one fetcher: resolved once, checked where the socket is opened, every hop",
    ),
    11: Case(
        "media bombs",
        "CVE-2026-100650, CVE-2026-34755, CVE-2026-22773, CVE-2026-40192",
        "limits while reading; pixels, frames, duration bounded; known formats; replicas decode",
    ),
    12: Case(
        "talkative errors",
        "CVE-2026-22778",
        "messages are our own; details are in the log",
    ),
    13: Case(
        "authentication by path",
        "CVE-2026-48710, CVE-2026-48746, CVE-2026-49468",
        "every route depends on it; no path is compared",
    ),
    14: Case(
        "forgotten routes",
        "open `/pause`, `/tokenize` and `/invocations` of another server",
        "deny by default; a test walks the routes",
    ),
    15: Case(
        "timing of keys",
        "CVE-2025-59425, CVE-2026-23996",
        "looked up by a public id, digests compared in constant time",
    ),
    16: Case(
        "keys in SQL and logs",
        "CVE-2026-42208, CVE-2024-9606",
        "bound parameters, digests; a canary is looked for everywhere",
    ),
    17: Case(
        "unbounded numbers",
        "CVE-2026-34756, CVE-2026-114051",
        "every number has bounds in its schema",
    ),
    18: Case(
        "grammars",
        "CVE-2025-48943, CVE-2025-48944, CVE-2025-29770, CVE-2026-105757",
        "bounded in length and depth, compiled in limited time: a 400, never a dead engine",
    ),
    19: Case(
        "framework",
        "CVE-2025-62727, CVE-2025-54121, CVE-2024-47874, CVE-2025-48956",
        "versions above the fixes; limits while reading",
    ),
    20: Case(
        "prefix cache between tenants",
        "CVE-2025-46570",
        "a replica is one deployment's",
    ),
    21: Case(
        "prompt embeddings",
        "CVE-2026-56340",
        "refused by name",
    ),
    22: Case(
        "`assert` as a check",
        "CVE-2026-41523",
        "there is none in the package",
    ),
    23: Case(
        "tool servers",
        "CVE-2026-42271, CVE-2025-66416",
        "HTTP only, by the fetcher's rules",
    ),
    24: Case(
        "other tenants' objects",
        "the commonest flaw of APIs",
        "every query names the account; every route is asked for others' objects",
    ),
    25: Case(
        "console",
        "cross-site scripting, forged requests",
        "a policy that runs our own files alone; a cookie that no script reads and no other site "
        "uses, a token for each change; files are served with a policy that lets them do nothing",
    ),
    26: Case(
        "signed links to files",
        "links that can be guessed or never end",
        "an HMAC, an end, one file each",
    ),
    27: Case(
        "schemas and patterns that never end",
        "a JSON schema of 2 kB that took 2^n steps of the gateway",
        "a caller's schema is compiled and applied in a process with limits of time and memory; "
        "references and repetitions are counted before",
    ),
    28: Case(
        "answers of another key",
        "an account's sign-in link, for a deployment's key with the same Idempotency-Key",
        "remembered answers belong to the key that asked; no sign-in link is remembered",
    ),
    29: Case(
        "prompts in logs",
        "a database's error that has the statement's parameters, or the row",
        "errors of databases are redacted before anybody logs them; a canary is looked for",
    ),
    30: Case(
        "an account that takes every place",
        "slow imports that kept another account's import waiting",
        "of few places one stays free, too; an import or trial gives its place back to an account "
        "that waits",
    ),
    31: Case(
        "answers that take long to read",
        "an answer of 41 MB that made another account wait for 2.6 s",
        "what the gateway reads of an answer is bounded; more is read in a process, or not at all",
    ),
    32: Case(
        "headers that take long to read",
        "an adapter's 100 MB of headers, read in the gateway's threads at each deployment",
        "headers are read in a process with limits of time and memory, shared by account",
    ),
    33: Case(
        "merged adapters",
        "adapters of 12 kB that wrote a gigabyte which no quota counted",
        "disk and quota are taken first; a confined process writes; idle folders are removed",
    ),
    34: Case(
        "memory beside a replica's process",
        "System V shared memory that outlived its server, and a child that no budget counted",
        "such memory is refused; the processes below a replica count, and so does its folder",
    ),
}


def marks(root: Path = ROOT) -> dict[int, list[str]]:
    """Maps each case to the tests that are marked with it, in pytest's notation."""
    return {int(number): tests for number, tests in marked("case", root).items()}


def page() -> str:
    """Returns the expected text of docs/security_cases.md."""
    tried = marks()
    cases = [
        f"| {number} | {case.name} | {case.seen} | {case.answer} | {shown(tried.get(number, []))} |"
        for number, case in CASES.items()
    ]
    broken = [
        f"| {mutation.case} | {mutation.breaks} | `{mutation.file}` | {mutation.seen} |"
        for mutation in sorted(MUTATIONS, key=lambda mutation: mutation.case)
    ]
    return "\n".join(
        [
            "# Security cases",
            "",
            "What has gone wrong in servers like this one, what we do about it, and the tests that",
            "try it: those marked `case(number)`, all of which `pytest -m case` runs. Identifiers",
            "resolve at osv.dev/vulnerability/ID. `python -m tools.security_cases` writes this.",
            "",
            "| # | class | seen as | our answer | tests |",
            "|---|---|---|---|---|",
            *cases,
            "",
            "## Do the tests notice?",
            "",
            "For each case one line that guards it was broken on purpose, and tests of that case",
            "were run (`python -m tools.mutations`, or with the numbers of some). A break that no",
            "test notices is a test that is missing.",
            "",
            "| # | what was broken | in | the tests |",
            "|---|---|---|---|",
            *broken,
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
