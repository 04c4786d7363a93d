"""The built distribution in an environment with only its dependencies."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.client.conftest import MODELS, Reached, new_key
from tests.packaging.conftest import MISSING
from tests.support.checkout import linked
from tests.support.doc_runs import block_of
from tests.support.server import Server

pytestmark = MISSING

BUILD, INSTALL = block_of("docs/guide/python.md", "make dist-client").text.splitlines()
MOST_BYTES = 200_000

SAMPLE = """
import asyncio
import sys

from stoker_client import AsyncStoker, Stoker

with Stoker() as stoker:
    artifact = stoker.artifacts.push(sys.argv[1])
    deployment = stoker.deployments.create(
        model="feedback", artifact_id=artifact.id, readiness="warm"
    )
    stoker.deployments.wait(deployment.id)
    labels = stoker.tasks.text_classification("The food was not good at all.", model="feedback")
    label: str = labels[0]["label"]


async def main() -> None:
    async with AsyncStoker() as stoker:
        several = await stoker.tasks.text_classification(["The food was great."], model="feedback")
        print(label, several[0][0]["label"])


asyncio.run(main())
print(*sorted(name for name in sys.modules if name in ("torch", "pydantic", "stoker", "click")))
"""

WITHOUT_OPENAI = """
from stoker_client import WrongUseError

try:
    Stoker().openai()
except WrongUseError as error:
    print(error)
"""

WRONG = """
from pathlib import Path

from stoker_client import AsyncStoker, Stoker


def wrong(stoker: Stoker) -> None:
    stoker.deployments.create(model="a", readyness="warm")
    stoker.deployments.create(readiness="warm")
    stoker.deployments.create(model="a", readiness="lukewarm")
    stoker.deployments.create(model="a", replicas={"max": "many"})
    stoker.tasks.text_classification(Path("a"))
    stoker.deployments.list(limits=1)


def right(stoker: Stoker) -> None:
    reveal_type(stoker.deployments.get("a"))
    reveal_type(stoker.deployments.get("a").workers[0].pid)
    reveal_type(stoker.tasks.text_classification("a"))
    reveal_type(stoker.tasks.text_classification(["a"]))
    reveal_type(stoker.tasks.image_classification(Path("a")))
    reveal_type(next(stoker.artifacts.list()).pipeline)


async def right_too(stoker: AsyncStoker) -> None:
    reveal_type(await stoker.artifacts.push("a"))
    reveal_type([event.data async for event in stoker.runs.events("a", "b")])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the distribution by the guide's command. Returns the folder of its files."""
    folder = tmp_path_factory.mktemp("checkout")
    linked(folder)
    done = subprocess.run(
        BUILD.split(), cwd=folder, check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder / "dist"


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the wheel by the guide's command, and returns the interpreter."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for needed in dependencies("httpx", "msgspec"):
        copy(needed, site)
    python = folder / "bin" / "python"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # The dependencies are there already.
    env = {**os.environ, "PATH": path, "PIP_PYTHON": str(python), "PIP_NO_INDEX": "1"}
    subprocess.run(["bash", "-euc", f"{INSTALL}\npip check"], cwd=built.parent, env=env, check=True)
    return python


def dependencies(*names: str) -> Iterator[Distribution]:
    """Yields installed distributions and their dependencies, without extras."""
    pending, seen = list(names), set[str]()
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            found = distribution(name)
            yield found
            needs = map(Requirement, found.requires or ())
            pending += [r.name for r in needs if not r.marker or r.marker.evaluate({"extra": ""})]


def copy(found: Distribution, site: Path) -> None:
    for file in found.files or ():
        if ".." not in file.parts and file.suffix != ".pyc":
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)


def test_content(built: Path) -> None:
    (wheel,) = built.glob("stoker_client-*-py3-none-any.whl")
    (source,) = built.glob("stoker_client-*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"stoker_client/py.typed", "stoker_client/model_files.json"} <= set(names)
    assert not [name for name in names if not name.startswith(("stoker_client/", "stoker_client-"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)
    with tarfile.open(source) as archive:
        members = archive.getnames()
    assert any(name.endswith("/stoker_client/aio/stoker.py") for name in members)
    for path in (wheel, source):
        assert path.stat().st_size < MOST_BYTES, path


def test_right_label(python: Path, server: Server, reached: Reached, tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE + WITHOUT_OPENAI)
    env = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "STOKER_BASE_URL": reached.base_url,
        "STOKER_API_KEY": new_key(server),
    }
    done = subprocess.run(
        [python, "sample.py", str(MODELS / "tiny-sentiment")],
        cwd=tmp_path,
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "negative positive",
        "",
        "The package 'openai' is not installed. Install it: pip install openai",
    ]


def checked(python: Path, folder: Path, source: str) -> list[dict[str, str]]:
    """Returns pyright's strict diagnostics of a program that uses the installed wheel."""
    (folder / "program.py").write_text(source)
    settings = {"typeCheckingMode": "strict", "include": ["program.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [Path(sys.executable).with_name("pyright"), "--outputjson", "--pythonpath", python]
    done = subprocess.run(
        [*command, "-p", "."], cwd=folder, check=False, capture_output=True, text=True, timeout=180
    )
    return json.loads(done.stdout)["generalDiagnostics"]


def test_types_are_complete(python: Path, tmp_path: Path) -> None:
    assert [d["message"] for d in checked(python, tmp_path, SAMPLE)] == []


def test_wrong_arguments_are_errors(python: Path, tmp_path: Path) -> None:
    diagnostics = checked(python, tmp_path, WRONG)
    errors = [d["message"] for d in diagnostics if d["severity"] == "error"]
    types = [d["message"] for d in diagnostics if d["severity"] == "information"]
    for number, word in enumerate(("readyness", "model", "lukewarm", "many", "Path", "limits")):
        assert any(word in message for message in errors), (number, word, errors)
    kinds = [message.rpartition(" is ")[2].strip('"') for message in types]
    assert kinds == [
        "Deployment",
        "int | None",
        "list[Label]",
        "list[list[Label]]",
        "list[Label]",
        "str | None",
        "Artifact",
        "list[dict[str, Any]]",
    ]
