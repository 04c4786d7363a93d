"""Objects with a state of their own are changed only by their own methods."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUARDED = {
    "ReplicaHandle",
    "Lifecycle",
    "PendingCalls",
    "ReplicaAnswer",
    "CallStats",
    "Vitals",
    "Record",
    "Start",
    "State",
    "AssignedSpec",
    "NodeCall",
    "NodeClient",
    "TrackedSpec",
}
"""Classes of `stoker/runtime` with fields that only their own methods assign."""


def trees() -> dict[str, ast.Module]:
    folder = ROOT / "stoker" / "runtime"
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
        for path in folder.rglob("*.py")
    }


def is_guarded(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(
        isinstance(node, ast.Name) and node.id in GUARDED for node in ast.walk(annotation)
    )


def sources(modules: Iterator[ast.Module]) -> set[str]:
    """Returns the names of functions, fields and constructors that yield guarded objects."""
    names = set(GUARDED)
    for node in (node for module in modules for node in ast.walk(module)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if is_guarded(node.returns):
                names.add(node.name)
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name)):
                if is_guarded(node.annotation):
                    names.add(name)
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call(func=ast.Name(id))):
                if id in GUARDED:
                    names.add(name)
            case _:
                pass
    return names


def names_in(expression: ast.expr) -> set[str]:
    """Returns the names that an expression refers to."""
    nodes = [*ast.walk(expression)]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


def bound(function: ast.AST, source_names: set[str]) -> set[str]:
    """Returns the names in a function that refer to guarded objects."""
    names = set[str]()
    for node in ast.walk(function):
        match node:
            case ast.arg() if is_guarded(node.annotation):
                names.add(node.arg)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not isinstance(
                value, ast.Constant
            ):
                names |= {name} if names_in(value) & source_names else set()
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                names |= {name} if names_in(value) & source_names else set()
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                names |= names_in(target) if names_in(value) & source_names else set()
            case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)):
                names |= {name} if names_in(value) & source_names else set()
            case _:
                pass
    return names


def assigned(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yields the attributes that a statement assigns."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            pass
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            targets = [target]
        case _:
            return
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(part, ast.Attribute):
                yield part


def violations(modules: dict[str, ast.Module]) -> list[str]:
    source_names = sources(iter(modules.values()))
    found = list[str]()
    for path, module in modules.items():
        for function in ast.walk(module):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            names = bound(function, source_names)
            for target in (target for node in ast.walk(function) for target in assigned(node)):
                owner = target.value
                is_name = isinstance(owner, ast.Name) and owner.id in names
                is_field = isinstance(owner, ast.Attribute) and owner.attr in source_names
                if is_name or is_field:
                    found.append(f"{path}:{target.lineno} {ast.unparse(target)}")
    return found


def test_fields_are_assigned_by_their_class():
    modules = trees()
    classes = (node for module in modules.values() for node in ast.walk(module))
    assert {node.name for node in classes if isinstance(node, ast.ClassDef)} >= GUARDED
    assert violations(modules) == []


@pytest.mark.parametrize(
    "statement",
    [
        "def f(replica: ReplicaHandle): replica.status = 1",
        "def f(replica: ReplicaHandle | None): replica.status, x = 1, 2",
        "async def f(self): replica = await self.launcher.launch()\n    replica.ready_at += 1",
        "def f(state):\n    for replica in state.of_status(1):\n        replica.kill_reason = 1",
        "def f(resident): resident.replica.answered = 1",
        "def f(self):\n    if known := self.known.get(1):\n        known.spec = 1",
        "def f(queue):\n    with queue.place() as record: record.given = 1",
    ],
)
def test_each_form_of_assignment_is_seen(statement: str):
    declarations = (
        "class Launcher:\n    def launch(self) -> ReplicaHandle: ...\n"
        "class Pool:\n    def of_status(self) -> list[ReplicaHandle]: ...\n"
        "class Resident:\n    replica: ReplicaHandle\n"
        "class Fleet:\n    def __init__(self): self.known: dict[str, TrackedSpec] = {}\n"
        "class Queue:\n    def place(self) -> Generator[Record]: ...\n"
    )
    statement = statement.replace(": replica = ", ":\n    replica = ")
    assert len(violations({"a.py": ast.parse(declarations + statement)})) == 1
