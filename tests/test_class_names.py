"""A class name has one meaning in the package."""

import ast
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "Adapter": "public names of two resources in the OpenAPI document",
    "Choice": "an answer of a request, and its form in OpenAI's API",
    "Engine": "the interface of an engine, and the entry of an engine in the public API",
    "Example": "a call with different answers, stored and in a response",
    "FileReader": "the same protocol: inspection may not import the store",
    "Holding": "memory of a worker during one hour, measured and stored",
    "Inspection": "the result of an inspection, and its response",
    "Latency": "counted latency, and its response",
    "Logprob": "log probability of a token, by number and by text",
    "Notice": "a fact about a model, between processes and in a response",
    "Part": "a part of an upload, of the client and in a response",
    "Ray": "the protocol of the class that needs Ray's packages",
    "StokerError": "base class of the errors of the server, and of those of the client",
    "TokenLogprob": "log probability of a token, and its form in OpenAI's API",
    "ToolCall": "a model's call of a tool, in OpenAI's API and in a run",
    "Usage": "token counts of a request, and their form in OpenAI's API",
}
"""Names with one meaning in two modules, and the meaning."""


GENERATED = (
    "stoker/client/aio/operations/",
    "stoker/client/models/",
    "stoker/client/params/",
    "stoker/client/results.py",
    "stoker/client/sync/",
)
"""Generated modules, whose names are those of the API."""


def places(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Maps each class name to the modules that define it."""
    modules_by_name = dict[str, list[str]]()
    for path in sorted(paths):
        module = path.relative_to(ROOT).as_posix()
        if module.startswith(GENERATED):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                modules_by_name.setdefault(node.name, []).append(module)
    return modules_by_name


def is_resource(modules: list[str]) -> bool:
    """Returns True for a resource: one class is its row, the other one its response."""
    is_row = [module.startswith("stoker/store/tables/") for module in modules]
    is_response = [module.endswith("/schemas.py") for module in modules]
    return sorted(zip(is_row, is_response, strict=True)) == [(False, True), (True, False)]


def test_a_class_name_has_one_meaning():
    duplicates = {
        name: modules
        for name, modules in places((ROOT / "stoker").rglob("*.py")).items()
        if len(modules) > 1 and not is_resource(modules)
    }
    unexpected = {name: modules for name, modules in duplicates.items() if name not in ALLOWED}
    assert unexpected == {}, "rename the class, or allow a name with one meaning"
    assert {name for name, modules in duplicates.items() if len(modules) > 2} == set()
    assert ALLOWED.keys() == duplicates.keys(), "no name is allowed without a need"
