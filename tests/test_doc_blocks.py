"""Every block of the documentation runs in a test, or a test checks it. Data blocks can be read."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from stoker.models.engines.catalogue import ENGINES
from stoker.models.tasks.registry import TASKS
from tests.demo.doc_plans import PLANS
from tests.servers.doc_plans import FLEET_PLANS
from tests.support.doc_blocks import ROOT, RUNNABLE, SHELL, Block, blocks, pages
from tests.support.doc_runs import (
    CHECKED,
    RUN_BY,
    WHOLE,
    matching,
    reason,
    sole_tests,
)

ALL = [block for page in pages() for block in blocks(page)]
PLANNED = {*PLANS, *FLEET_PLANS}
LANGUAGES = {"", "text", "json", "yaml", "toml", *RUNNABLE}


def runs(block: Block) -> list[str]:
    """Returns the tests that run a block."""
    if reason(block):
        return []
    if tests := sole_tests(block):
        return tests
    whole = [
        test
        for (page, language), test in WHOLE.items()
        if block.page.startswith(page) and block.language == language
    ]
    planned = [block.page] if block.language in SHELL and block.page in PLANNED else []
    return [*planned, *whole[:1]]


def test_each_block_runs_or_says_why_not() -> None:
    wrong = [
        f"{block.page}:{block.line}: {len(runs(block))} tests, reason: {reason(block)}"
        for block in ALL
        if block.language in RUNNABLE and not reason(block) and len(runs(block)) != 1
    ]
    assert wrong == []


def test_languages() -> None:
    assert [f"{block.page}:{block.line}" for block in ALL if block.language not in LANGUAGES] == []


@pytest.mark.parametrize("table", [CHECKED, RUN_BY], ids=["checked", "run by"])
def test_entries_match_one_block(table: Mapping[tuple[str, str], object]) -> None:
    counts = {place: sum(matching(block, place) for block in ALL) for place in table}
    assert {place: count for place, count in counts.items() if count != 1} == {}


def test_plans_and_patterns_match_a_block() -> None:
    for page in PLANNED:
        assert any(block.page == page and block.language in SHELL for block in ALL), page
    for page, language in WHOLE:
        found = [b for b in ALL if b.page.startswith(page) and b.language == language]
        assert found, (page, language)


CHECKS = {test for _, test in CHECKED.values()}


@pytest.mark.parametrize("test", sorted({*RUN_BY.values(), *WHOLE.values(), *CHECKS}))
def test_the_named_test_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()


@pytest.mark.parametrize(("page", "beginning"), CHECKED)
def test_a_check_reads_its_block(page: str, beginning: str) -> None:
    """The file of the test names the page and the beginning of the block."""
    _, test = CHECKED[page, beginning]
    source = (ROOT / test.partition("::")[0]).read_text()
    assert f'"{page}"' in source and f'"{beginning}' in source


def test_no_block_is_both_run_and_checked() -> None:
    assert not {*CHECKED} & {*RUN_BY}


@pytest.mark.parametrize("block", [b for b in ALL if b.language in SHELL and reason(b)], ids=str)
def test_blocks_that_do_not_run_are_valid_shell(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, text=True, check=False)
    assert done.returncode == 0


def test_examples_of_the_reference() -> None:
    """The reference's calls are lines of other pages, whose blocks run."""
    joined = [
        block.text.replace("\\\n", " ")
        for block in ALL
        if block.language in SHELL and block.page != "docs/cli.md"
    ]
    others = " ".join("\n".join(joined).split())
    calls = [
        line
        for block in blocks("docs/cli.md")
        if block.language in SHELL
        for line in block.text.splitlines()
    ]
    assert len(calls) > 40
    assert [call for call in calls if " ".join(call.split()) not in others] == []


def data(language: str) -> list[Block]:
    found = [block for block in ALL if block.language == language]
    assert found
    return found


@pytest.mark.parametrize("block", data("json"), ids=lambda block: f"{block.page}:{block.line}")
def test_json(block: Block) -> None:
    # A log has one object a line, and long objects are wrapped.
    decoder, text = json.JSONDecoder(), block.text.strip()
    while text:
        _, end = decoder.raw_decode(text)
        text = text[end:].strip()


@pytest.mark.parametrize("block", data("yaml"), ids=lambda block: f"{block.page}:{block.line}")
def test_yaml(block: Block) -> None:
    read = yaml.safe_load(block.text)
    if "scrape_configs" in read:
        (job,) = read["scrape_configs"]
        assert set(job) <= {"job_name", "scheme", "authorization", "static_configs"}
    else:
        # tests/packaging/test_fleet_chart.py renders the chart with these values.
        values = yaml.safe_load((ROOT / "deploy/helm/stoker/values.yaml").read_text())
        assert set(read) <= set(values)


@pytest.mark.parametrize("block", data("toml"), ids=lambda block: f"{block.page}:{block.line}")
def test_toml(block: Block) -> None:
    assert tomllib.loads(block.text)


LOAD = """
from stoker.models.engines.catalogue import ENGINES
from stoker.models.tasks.registry import TASKS
from my_package.engines import BagEngine
print(ENGINES["bag"].title, TASKS["sentence-length"].path, BagEngine.name)
"""


def test_the_plugin_of_the_guide(tmp_path: Path) -> None:
    """The page's package is found by its entry points."""
    names = ("records.py", "engines.py")
    sources = [block.text for block in blocks("docs/guide/plugins.md") if block.language == "py"]
    (tmp_path / "my_package").mkdir()
    for name, source in zip(names, sources, strict=True):
        (tmp_path / "my_package" / name).write_text(source)
    (toml,) = (block for block in data("toml") if block.page == "docs/guide/plugins.md")
    points = tomllib.loads(toml.text)["project"]["entry-points"]
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())])
        for group, entries in points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "Bag /v1/toys/sentence-length bag\n", done.stderr
    assert "bag" not in ENGINES and "sentence-length" not in TASKS
