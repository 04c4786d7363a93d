import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "numpy", "safetensors", "tokenizers", "openvino", "diffusers")
SQL_TYPES = {"AsyncSession", "ColumnElement", "InstrumentedAttribute", "Select"}
"""Names of SQLAlchemy that any module may import, for annotations."""


def test_gateway_imports_no_engine():
    """The gateway is one event loop. It starts fast, stays small and computes nothing."""
    program = (
        "import json, sys, stoker.server.app; from stoker.runtime import choose; "
        "choose.builder('local'); print(json.dumps(sorted(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, timeout=60, cwd=ROOT
    )
    loaded = set(json.loads(result.stdout))
    assert {"stoker.inference.tasks", "stoker.runtime.local.runtime"} <= loaded
    assert loaded & set(HEAVY) == set()
    # Native code that applies a caller's schema or pattern holds the interpreter's lock.
    assert loaded & {"jsonschema_rs", "jsonschema", "regex", "llguidance"} == set()


def test_contracts_are_kept():
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [str(lint), "--no-cache"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def sql_imports(source: str) -> Iterator[str]:
    """Yields the names of SQLAlchemy that a module imports and that can build a statement."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if _is_sqlalchemy(name.name))
        elif isinstance(node, ast.ImportFrom) and _is_sqlalchemy(node.module or ""):
            # Exceptions build no statement.
            allowed = node.module == "sqlalchemy.exc"
            yield from (
                name.name for name in node.names if not allowed and name.name not in SQL_TYPES
            )


def _is_sqlalchemy(module: str) -> bool:
    return module.partition(".")[0] == "sqlalchemy"


def test_only_repositories_hold_sql():
    stoker = ROOT / "stoker"
    modules = {path.relative_to(stoker).as_posix(): path for path in stoker.rglob("*.py")}
    others = {
        name: path
        for name, path in modules.items()
        if not name.startswith("store/")
        and path.name != "repository.py"
        and not path.name.endswith("_repository.py")
    }
    assert {"server/health.py", "registry/deployments/versions.py"} <= others.keys()
    assert not [name for name, path in others.items() if [*sql_imports(path.read_text())]]


def test_contract_of_repositories_sees_each_form_of_import():
    for statement in (
        "from sqlalchemy import select",
        "from sqlalchemy import ColumnElement, exists",
        "from sqlalchemy import delete as deletion",
        "from sqlalchemy.dialects.postgresql import insert",
        "from sqlalchemy.orm import aliased",
        "import sqlalchemy",
        "import sqlalchemy as sa",
        "import sqlalchemy.sql",
        "def f():\n    from sqlalchemy import text",
    ):
        assert [*sql_imports(statement)], statement
    allowed = "from sqlalchemy import ColumnElement\nfrom sqlalchemy.exc import IntegrityError"
    assert not [*sql_imports(allowed)]
