"""The commands that add an extra, run in real environments with Stoker from the wheel."""

import json
import shlex
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.conftest import MISSING
from tests.packaging.support import NEEDS_LIBRARIES, CleanEnvironment, site_packages
from tools.distributions import Distributions

pytestmark = [pytest.mark.release, MISSING, NEEDS_LIBRARIES]

DRIVER = "asyncpg-0.32.0"
"""Package of the extra `postgres`, which the users' environment does not have."""
SHOW = "from stoker.base import extras; print(extras.{})"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with an empty package under the driver's name, in place of an index."""
    folder = tmp_path_factory.mktemp("index")
    info = f"{DRIVER}.dist-info"
    files = {
        "asyncpg.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: asyncpg\nVersion: 0.32.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{DRIVER}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return folder


@pytest.fixture(scope="module")
def with_pip(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    clean = CleanEnvironment.make(tmp_path_factory.mktemp("with pip"))
    clean.add_libraries()
    return clean


@pytest.fixture
def environment(with_pip: CleanEnvironment) -> Iterator[CleanEnvironment]:
    """Yields an environment with pip. Removes Stoker and the driver afterwards."""
    yield with_pip
    with_pip.shell("pip uninstall --quiet --yes stoker asyncpg")


def shown(clean: CleanEnvironment, call: str) -> str:
    """Returns the command that the installed Stoker shows."""
    imported = clean.shell("python -c 'import stoker; print(stoker.__file__)'")
    assert imported.startswith((str(clean.venv), str(clean.folder)))
    return clean.shell(f"python -c {shlex.quote(SHOW.format(call))}")


def adds_the_driver(clean: CleanEnvironment, command: str, *folders: Path) -> None:
    """Runs a command in a shell. Checks that the driver was missing and is there afterwards."""
    has_driver = 'python -c "import asyncpg"'
    assert clean.attempt(has_driver).returncode == 1
    found = " ".join(folder.as_uri() for folder in folders)
    clean.shell(command, PIP_FIND_LINKS=found)
    clean.shell(has_driver)


def test_wheel_from_a_file(
    environment: CleanEnvironment, built: Distributions, index: Path, tmp_path: Path
) -> None:
    wheel = tmp_path / "a folder" / built.wheel.name
    wheel.parent.mkdir()
    shutil.copy(built.wheel, wheel)
    environment.shell(f"pip install --quiet {shlex.quote(str(wheel))}")
    pip = f"{shlex.quote(str(environment.python))} -m pip install"
    command = shown(environment, "install_command('postgres')")
    assert command == f"{pip} 'stoker[postgres] @ {wheel.as_uri()}'"
    adds_the_driver(environment, command, index)

    environment.shell("pip uninstall --quiet --yes asyncpg")
    wheel.unlink()
    command = shown(environment, "install_command('postgres')")
    assert command == f"{pip} 'asyncpg>=0.32'"
    adds_the_driver(environment, command, index)
    assert (
        shown(environment, "install_command('ray')") == f"{pip} 'asyncpg>=0.32' 'ray<2.61,>=2.60'"
    )
    assert (
        shown(environment, "install_package_command('openvino')")
        == f"{pip} 'openvino<2026.5,>=2026.4'"
    )


def test_from_an_index(environment: CleanEnvironment, built: Distributions, index: Path) -> None:
    links = shlex.quote(built.wheel.parent.as_uri())
    environment.shell(f"pip install --quiet --ignore-installed --no-deps -f {links} stoker")
    command = shown(environment, "install_command('postgres')")
    python = shlex.quote(str(environment.python))
    assert command == f"{python} -m pip install 'stoker[postgres]'"
    adds_the_driver(environment, command, index, built.wheel.parent)


def test_without_pip(
    with_pip: CleanEnvironment, built: Distributions, index: Path, tmp_path: Path
) -> None:
    """As in an environment that uv made, or in a container."""
    clean = CleanEnvironment.make(tmp_path / "without pip", "--without-pip")
    python, wheel = shlex.quote(str(clean.python)), shlex.quote(str(built.wheel))
    with_pip.shell(f"pip --python {python} install --quiet --no-deps {wheel}")
    wanted = f"'stoker[postgres] @ {built.wheel.as_uri()}'"
    (info,) = site_packages(clean.venv).glob("stoker-*.dist-info")
    (info / "INSTALLER").write_text("uv")
    by_uv = f"uv pip install --python {python} {wanted}"
    assert shown(clean, "install_command('postgres')") == by_uv
    (info / "INSTALLER").write_text("pip")
    command = shown(clean, "install_command('postgres')")
    assert command == f"{python} -m ensurepip && {python} -m pip install {wanted}"
    adds_pip, _, adds_driver = command.partition(" && ")
    clean.shell(adds_pip)
    clean.add_libraries()
    adds_the_driver(clean, adds_driver, index)


def test_repository(environment: CleanEnvironment, built: Distributions) -> None:
    environment.shell(f"pip install --quiet --no-deps {shlex.quote(str(built.wheel))}")
    (info,) = site_packages(environment.venv).glob("stoker-*.dist-info")
    # As pip writes it after an installation from a repository, which needs a server.
    vcs = {"vcs": "git", "commit_id": "1fbe2213"}
    origin = {"url": "https://git.example/stoker", "vcs_info": vcs}
    (info / "direct_url.json").write_text(json.dumps(origin))
    pip = f"{shlex.quote(str(environment.python))} -m pip install"
    wanted = "'stoker[postgres] @ git+https://git.example/stoker@1fbe2213'"
    assert shown(environment, "install_command('postgres')") == f"{pip} {wanted}"
