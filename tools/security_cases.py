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
        "only safetensors and GGUF are accepted, detected by content; nothing is unpickled",
    ),
    2: Case(
        "scanner evasion",
        "CVE-2025-10156, CVE-2025-1945, CVE-2026-14534",
        "no scanner: unknown content is rejected",
    ),
    3: Case(
        "remote code",
        "CVE-2026-22807, CVE-2026-27893, CVE-2026-5241",
        "inspection rejects programs, and configuration keys that name code at any depth",
    ),
    4: Case(
        "other unsafe formats",
        "CVE-2025-1550, CVE-2025-8747",
        "not accepted",
    ),
    5: Case(
        "template code execution",
        "CVE-2024-34359, CVE-2024-2952, CVE-2026-5760",
        "an immutable sandbox, also for templates of GGUF files",
    ),
    6: Case(
        "template denial of service",
        "CVE-2026-115911, CVE-2025-62426",
        "no templates in requests, only variables that the template uses, limits of time and size",
    ),
    7: Case(
        "archives",
        "CVE-2026-27905, CVE-2025-4517, CVE-2024-45436",
        "not accepted",
    ),
    8: Case(
        "names and paths",
        "CVE-2024-37032, CVE-2026-24486",
        "the server names blobs; each part of a path is validated twice",
    ),
    9: Case(
        "lying headers",
        "CVE-2026-7482",
        "sizes, counts, offsets, overlaps, types and shapes are checked before any load",
    ),
    10: Case(
        "fetching media",
        "CVE-2025-6242, CVE-2026-24779, CVE-2026-25960, CVE-2026-34753, CVE-2026-33626, "
        "CVE-2026-63764, CVE-2026-108719",
        "one fetcher; it resolves a name once and checks the address of each connection",
    ),
    11: Case(
        "media bombs",
        "CVE-2026-100650, CVE-2026-34755, CVE-2026-22773, CVE-2026-40192",
        "limits of bytes, pixels, frames and duration; known formats only; replicas decode",
    ),
    12: Case(
        "errors that leak details",
        "CVE-2026-22778",
        "error messages contain no library output; details are in the log",
    ),
    13: Case(
        "authentication by path",
        "CVE-2026-48710, CVE-2026-48746, CVE-2026-49468",
        "every route requires authentication by itself; no path is compared",
    ),
    14: Case(
        "routes without authentication",
        "open `/pause`, `/tokenize` and `/invocations` of another server",
        "denied by default; a test requests every route",
    ),
    15: Case(
        "timing of keys",
        "CVE-2025-59425, CVE-2026-23996",
        "lookup by a public id, comparison of digests in constant time",
    ),
    16: Case(
        "keys in SQL and logs",
        "CVE-2026-42208, CVE-2024-9606",
        "bound parameters, digests; a test searches all output for a canary",
    ),
    17: Case(
        "unbounded numbers",
        "CVE-2026-34756, CVE-2026-114051",
        "every number has bounds in its schema",
    ),
    18: Case(
        "grammars",
        "CVE-2025-48943, CVE-2025-48944, CVE-2025-29770, CVE-2026-105757",
        "limits of length, depth and compile time; a 400 instead of a crashed engine",
    ),
    19: Case(
        "framework",
        "CVE-2025-62727, CVE-2025-54121, CVE-2024-47874, CVE-2025-48956",
        "fixed versions; limits while reading",
    ),
    20: Case(
        "prefix cache between tenants",
        "CVE-2025-46570",
        "a replica serves one deployment",
    ),
    21: Case(
        "prompt embeddings",
        "CVE-2026-56340",
        "the field is rejected",
    ),
    22: Case(
        "`assert` as a check",
        "CVE-2026-41523",
        "the package has no `assert`",
    ),
    23: Case(
        "tool servers",
        "CVE-2026-42271, CVE-2025-66416",
        "HTTP only, with the rules of the fetcher",
    ),
    24: Case(
        "other tenants' objects",
        "the most common flaw of APIs",
        "every query filters by account; a test requests other accounts' objects from every route",
    ),
    25: Case(
        "console",
        "cross-site scripting, forged requests",
        "a content security policy for our own scripts only; an `HttpOnly`, `SameSite` cookie; a "
        "token for each change; files are served with a policy that forbids all scripts",
    ),
    26: Case(
        "signed links to files",
        "links that can be guessed or never expire",
        "an HMAC, an expiry, one file per link",
    ),
    27: Case(
        "schemas and patterns with endless evaluation",
        "a JSON schema of 2 kB that took 2^n steps in the gateway",
        "a separate process compiles and applies callers' schemas, with limits of time and "
        "memory; references and repetitions are counted before",
    ),
    28: Case(
        "answers to another key",
        "an account's sign-in link, for a deployment's key with the same Idempotency-Key",
        "stored answers belong to the key of the request; sign-in links are not stored",
    ),
    29: Case(
        "prompts in logs",
        "a database error with the parameters of the statement, or with the row",
        "database errors are redacted before they are logged; a test searches for a canary",
    ),
    30: Case(
        "an account that uses all slots",
        "slow imports that kept another account's import waiting",
        "one slot stays free for other accounts; an import or trial yields its slot to an account "
        "that waits",
    ),
    31: Case(
        "answers that are slow to parse",
        "an answer of 41 MB that delayed another account by 2.6 s",
        "the gateway parses a limited part of an answer; a separate process may parse more",
    ),
    32: Case(
        "headers that are slow to parse",
        "100 MB of headers of an adapter, parsed in the gateway's threads at each deployment",
        "a separate process parses headers, with limits of time and memory per account",
    ),
    33: Case(
        "merged adapters",
        "adapters of 12 kB that wrote a gigabyte outside all quotas",
        "disk and quota are reserved first; a sandboxed process writes; idle folders are removed",
    ),
    34: Case(
        "memory outside a replica's process",
        "System V shared memory that outlived its server, and a child outside all budgets",
        "such memory is denied; children of a replica and files in its folder count",
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
            "This page lists vulnerabilities of similar servers, Stoker's protection, and its",
            "tests. They are marked `case(number)`, and `pytest -m case` runs them. Identifiers",
            "resolve at osv.dev/vulnerability/ID. `python -m tools.security_cases` writes it.",
            "",
            "| # | class | known as | protection | tests |",
            "|---|---|---|---|---|",
            *cases,
            "",
            "## Mutations",
            "",
            "For each case, one line of its protection was broken on purpose, and its tests were",
            "run (`python -m tools.mutations`, or with numbers of cases). A mutation that no test",
            "detects shows a missing test.",
            "",
            "| # | mutation | file | tests |",
            "|---|---|---|---|",
            *broken,
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
