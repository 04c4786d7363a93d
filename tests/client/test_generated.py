"""The generated files of the client match the server's OpenAPI document."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stoker.client import models
from tools.client_api.__main__ import outdated
from tools.client_api.document import Document
from tools.client_api.files import CLIENT
from tools.client_api.table import EXCLUDED, RESOURCES


def test_files_are_up_to_date() -> None:
    assert outdated() == [], "python -m tools.client_api"


def test_each_operation_has_a_method_or_a_reason() -> None:
    named = [key for resource in RESOURCES.values() for key in resource.methods.values()]
    assert len(named) == len(set(named))
    assert set(named) & EXCLUDED.keys() == set()
    assert {*named, *EXCLUDED} == Document.read().operations.keys()


def test_models_accept_new_values() -> None:
    run = {"id": "run_1", "status": "new", "of_tomorrow": 1}
    schema = Document.read().schemas["Run"]
    missing = set(schema["required"]) - run.keys()
    assert missing, "the response has more required fields"
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        msgspec.convert(run, models.Run)
    kinds = msgspec.structs.fields(models.Run)
    assert {field.name for field in kinds} == schema["properties"].keys()
    assert next(field.type for field in kinds if field.name == "status") is str


def test_files_are_short() -> None:
    lengths = {
        path.relative_to(CLIENT).as_posix(): len(path.read_text().splitlines())
        for path in CLIENT.rglob("*.py")
    }
    assert {name: count for name, count in lengths.items() if count > 420} == {}


def test_a_program_never_reads_of_options() -> None:
    """Messages and hints name arguments, not options of the command line."""
    texts = [
        (path.name, node.value)
        for path in CLIENT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert len(texts) > 500
    assert [text for text in texts if re.search(r"--[a-z]{2}", text[1])] == []


def test_imports_nothing_from_the_server() -> None:
    for path in CLIENT.rglob("*.py"):
        assert not re.search(r"^\s*(from|import) stoker", path.read_text(), re.MULTILINE), path


def test_the_command_line_starts_without_it() -> None:
    code = (
        "import sys; sys.argv = ['stoker', '--help']\n"
        "from stoker.cli.main import app\n"
        "try: app(standalone_mode=False)\n"
        "except SystemExit: pass\n"
        "import stoker.client\n"
        "loaded = [m for m in sys.modules if m.startswith('stoker.client') or m == 'httpx']\n"
        "print(*loaded, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stderr.split())
    assert "stoker.client" in loaded
    heavy = {"httpx", "stoker.client.models", "stoker.client.results", "stoker.client.sync.stoker"}
    assert loaded & heavy == set()


def test_names_of_the_package() -> None:
    import stoker.client as package

    for name in dir(package):
        assert getattr(package, name) is not None or name.startswith("__")
    with pytest.raises(AttributeError, match="no attribute 'Stocker'"):
        package.Stocker  # noqa: B018
    assert Path(str(package.__file__)).with_name("py.typed").exists()
