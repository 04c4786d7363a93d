"""The wheel and the source distribution: their contents, and Stoker as installed from the wheel."""

import email
import hashlib
import json
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import stoker
from stoker.demo.setup import MODELS
from tests.packaging.conftest import MISSING, ROOT, TOOLS
from tests.packaging.support import NEEDS_LIBRARIES, CleanEnvironment, site_packages
from tests.support.doc_runs import block_of
from tools import distributions
from tools.distributions import MB, Distributions

pytestmark = [MISSING, pytest.mark.one_machine]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WHEEL_LIMIT = 30 * MB
"""Maximum size in bytes. It was 26.4 MB when this was written, of which 24.0 were the demo."""
SDIST_LIMIT = 30 * MB
"""Maximum size in bytes. It was 26.0 MB."""
UNUSED = {"stoker/store/migrations/script.py.mako"}
"""Tracked files of the package that users do not need."""
SENTENCE = "The food was not good at all."


def tracked(folder: str) -> set[str]:
    names = subprocess.run(
        ["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return {name for name in names if name and (ROOT / name).exists()}


def digests(wheel: Path) -> dict[str, str]:
    """Returns the digest of each file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def members(sdist: Path) -> set[str]:
    """Returns the paths of the files in a source distribution, below its only folder."""
    with tarfile.open(sdist) as archive:
        paths = [Path(member.name) for member in archive.getmembers() if member.isfile()]
    assert {path.parts[0] for path in paths} == {sdist.name.removesuffix(".tar.gz")}
    return {Path(*path.parts[1:]).as_posix() for path in paths}


class TestContents:
    def test_the_wheel_is_the_package_and_its_metadata(self, built: Distributions) -> None:
        names = set(digests(built.wheel))
        package = {name for name in names if name.startswith("stoker/")}
        assert package == tracked("stoker") - UNUSED
        info = f"stoker-{stoker.__version__}.dist-info"
        licences = {f"{info}/licenses/{name}" for name in PROJECT["license-files"]}
        files = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
        assert names - package == licences | files

    @pytest.mark.parametrize(
        "name",
        [
            "stoker/py.typed",
            "stoker/server/console/static/index.html",
            "stoker/store/migrations/env.py",
            "stoker/demo/models/tiny-sentiment/model.safetensors",
        ],
    )
    def test_the_wheel_has_files_that_are_not_imported(
        self, built: Distributions, name: str
    ) -> None:
        assert name in digests(built.wheel)

    def test_the_source_distribution_has_the_package_and_the_pins(
        self, built: Distributions
    ) -> None:
        others = {"pyproject.toml", "constraints.txt", "requirements.lock", "deploy/package.md"}
        expected = tracked("stoker") | others | {"LICENSE", "PKG-INFO", ".gitignore"}
        assert members(built.sdist) == expected

    def test_the_source_distribution_builds_the_same_wheel(
        self, built: Distributions, tmp_path: Path
    ) -> None:
        with tarfile.open(built.sdist) as archive:
            archive.extractall(tmp_path, filter="data")
        (sources,) = tmp_path.iterdir()
        distributions.run_hatchling(sources, tmp_path / "out", TOOLS / "python", "-t", "wheel")
        assert digests(tmp_path / "out" / built.wheel.name) == digests(built.wheel)

    def test_files_that_are_not_tracked_stay_out(
        self, built: Distributions, tmp_path: Path
    ) -> None:
        checkout = tmp_path / "checkout"
        distributions.copy_tracked(ROOT, checkout)
        for command in (["init", "--quiet"], ["add", "--all"]):
            subprocess.run(["git", *command], cwd=checkout, check=True)
        for name in (
            ".env",
            ".data/operator-key",
            "stoker/.data/operator-key",
            "stoker/.env",
            "stoker/notes.py",
            "stoker/demo/models/private/model.safetensors",
            "stoker/server/console/static/assets/old.js",
        ):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_text("STOKER_SECRET=secret")
        others = distributions.build(checkout, tmp_path / "out", TOOLS / "python")
        assert digests(others.wheel) == digests(built.wheel)
        assert members(others.sdist) == members(built.sdist)

    def test_sizes(self, built: Distributions) -> None:
        assert built.wheel.stat().st_size < WHEEL_LIMIT
        assert built.sdist.stat().st_size < SDIST_LIMIT

    def test_the_pins_lie_next_to_the_wheel(self, built: Distributions) -> None:
        pins = built.wheel.with_name("constraints.txt")
        assert pins.read_bytes() == (ROOT / "constraints.txt").read_bytes()


class TestMetadata:
    @pytest.fixture
    def metadata(self, built: Distributions) -> Message:
        with zipfile.ZipFile(built.wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
            return email.message_from_bytes(archive.read(name))

    def test_fields(self, metadata: Message) -> None:
        assert metadata["Name"] == "stoker"
        assert metadata["Version"] == stoker.__version__
        assert metadata["Requires-Python"] == PROJECT["requires-python"]
        assert metadata.get_all("Classifier") == PROJECT["classifiers"]
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata.get_all("License-File") == PROJECT["license-files"]
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])

    def test_entry_point(self, built: Distributions) -> None:
        with zipfile.ZipFile(built.wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
            text = archive.read(name).decode()
        assert text == "[console_scripts]\nstoker = stoker.cli.main:main\n"

    def test_the_description_needs_no_other_file(self, metadata: Message) -> None:
        """An index page shows neither relative links nor pictures of the checkout."""
        tokens = MarkdownIt().parse(str(metadata.get_payload()))
        inline = [child for token in tokens for child in token.children or []]
        assert next(token.content for token in tokens if token.type == "inline") == "Stoker"
        links = [token.attrs.get("href", token.attrs.get("src")) for token in inline if token.attrs]
        assert [link for link in links if not str(link).startswith("https://")] == []

    def test_pip_refuses_an_older_python(self, built: Distributions, tmp_path: Path) -> None:
        """The pip of this environment is a recent one. An old pip, such as 23.0, reports the first
        library that the older Python does not have.
        """
        options = ["--no-index", "--only-binary=:all:", "--target", str(tmp_path)]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                *options,
                "--python-version=3.10.0",
                built.wheel,
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        wrong = "Package 'stoker' requires a different Python: 3.10.0 not in '>=3.11'"
        assert wrong in done.stderr


@pytest.fixture(scope="module")
def clean(built: Distributions, tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """Returns an environment that the commands of the package's page made."""
    block = block_of("deploy/package.md", "python3 -m venv")
    # `test_demo` starts it.
    assert block.text.endswith("\nstoker demo\n")
    return CleanEnvironment.by_page(tmp_path_factory.mktemp("newcomer"), block, built)


@NEEDS_LIBRARIES
class TestInstalled:
    """Stoker from the wheel, in an environment without a checkout."""

    def test_is_the_wheel(self, clean: CleanEnvironment) -> None:
        imported = Path(clean.shell("python -c 'import stoker; print(stoker.__file__)'"))
        assert imported == site_packages(clean.venv) / "stoker" / "__init__.py"
        assert clean.shell("stoker --version") == f"stoker {stoker.__version__}"
        assert clean.shell("command -v stoker") == str(clean.python.with_name("stoker"))

    def test_serve(self, clean: CleanEnvironment) -> None:
        with clean.started("serve") as data:
            base_url = json.loads((data / "server.json").read_text())["base_url"]
            key = (data / "operator-key").read_text().strip()
            operator = {"STOKER_BASE_URL": base_url, "STOKER_API_KEY": key}
            account = json.loads(clean.shell("stoker accounts create team --json", **operator))
            create = f"stoker keys create --scope account --account-id {account['id']}"
            user = operator | {"STOKER_API_KEY": clean.shell(create, **operator)}
            model = site_packages(clean.venv) / "stoker" / "demo" / "models" / "tiny-sentiment"
            push = f"stoker artifacts push {shlex.quote(str(model))} --name mine --deploy mine"
            clean.shell(push, **user)
            answer = json.loads(clean.shell(f"stoker call mine '{SENTENCE}' --json", **user))
            assert answer[0]["label"] == "negative" and answer[0]["score"] > 0.99
            health = json.loads(clean.shell(f"curl -fs {base_url}/health"))
            assert health["version"] == stoker.__version__
            # The console's page and its first script.
            page = clean.shell(f"curl -fs {base_url}/console/")
            (script,) = re.findall(r'src="([^"]+\.js)"', page)
            assert clean.shell(f"curl -fs {base_url}{script}")

    def test_postgresql_without_its_extra(self, clean: CleanEnvironment) -> None:
        done = clean.attempt("stoker serve", STOKER_DATABASE_URL="postgresql://u:p@127.0.0.1:9/x")
        assert done.returncode == 2
        assert "its driver is not installed" in done.stderr
        assert "-m pip install 'stoker[postgres] @ file://" in done.stderr

    def test_demo(self, clean: CleanEnvironment) -> None:
        with clean.started("demo") as data:
            demo = json.loads((data / "demo.json").read_text())
            assert set(demo["deployments"]) == {folder.name for folder in MODELS.iterdir()}
            clean.shell(f"stoker login --data-dir {shlex.quote(str(data))}")
            call = f"stoker call tiny-sentiment '{SENTENCE}' --json"
            answer = json.loads(clean.shell(call))
            assert answer[0]["label"] == "negative" and answer[0]["score"] > 0.99

    def test_uninstall_leaves_nothing(self, built: Distributions, tmp_path: Path) -> None:
        block = block_of("docs/guide/installation.md", "python3 -m venv")
        clean = CleanEnvironment.by_page(tmp_path / "brief", block, built)
        # Writes bytecode next to the modules.
        clean.shell("stoker engines list")
        assert ours(clean.venv)
        clean.shell("pip uninstall --quiet --yes stoker")
        assert ours(clean.venv) == []


def ours(environment: Path) -> list[Path]:
    """Returns Stoker's files and folders in an environment."""
    return [
        path for path in environment.rglob("*") if "stoker" in str(path.relative_to(environment))
    ]
