"""A new server's first user gets from a folder to an answer in the console."""

import contextlib
import io
import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stoker.demo.setup import MODELS
from stoker.server.bootstrap import DEFAULT_ACCOUNT
from tests.cli.support import Cli
from tests.demo.console import conftest as console
from tests.demo.console import test_accessibility as accessibility
from tests.demo.console.test_models import drop
from tests.demo.sentences import NER
from tests.support.server import Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

# A fleet has no default account.
pytestmark = pytest.mark.one_machine

browser, opened_at, axe = console.browser, console.opened_at, accessibility.axe
MOST_CLICKS = 5
COUNT_CLICKS = """
addEventListener("click", (event) => {
  // A label sends a second click to its input.
  if (!event.isTrusted || event.detail === 0) return;
  localStorage.clicks = Number(localStorage.clicks ?? 0) + 1;
}, true);
"""
STEPS = ["Choose a model folder", "Deploy", "Try it", "Call it from your code"]
METERED_MS = 30_000
"""Time in milliseconds in which usage shows a call."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path / "data") as server:
        yield server


@pytest.fixture
def operator(server: Server, opened_at: console.Opener) -> "Page":
    """Opens the console with a sign-in link of the operator."""
    link = Cli(server.base_url, server.operator_key).run("open", "--no-browser").stdout.strip()
    page = opened_at("about:blank")
    page.add_init_script(COUNT_CLICKS)
    page.goto(link)
    page.get_by_role("navigation", name="Pages").wait_for()
    return page


def wait_account(page: "Page", name: str) -> None:
    """Waits until the account menu shows an account."""
    page.locator(".account-choice option:checked", has_text=name).wait_for(state="attached")


def steps(page: "Page") -> "Locator":
    return page.locator("section.card", has_text="Deploy your first model")


def done(page: "Page") -> list[str]:
    titles = steps(page).locator(".step.done h3").all_inner_texts()
    return [title.removesuffix("(done)").strip() for title in titles]


def wait_done(page: "Page", title: str) -> None:
    step = steps(page).locator(".step.done", has=page.get_by_role("heading", name=title))
    step.wait_for(timeout=METERED_MS)


def test_from_a_folder_to_an_answer(
    operator: "Page", server: Server, axe: str, tmp_path: Path
) -> None:
    page = operator
    page.get_by_role("heading", name="Overview").wait_for()
    wait_account(page, DEFAULT_ACCOUNT)
    page.locator(".drop").wait_for()
    assert steps(page).locator("h3").all_inner_texts() == STEPS
    assert done(page) == []
    wrong = accessibility.found(page, axe)

    folder = tmp_path / "names"
    shutil.copytree(MODELS / "tiny-ner", folder)
    drop(page, ".drop", folder)
    page.get_by_role("button", name="Deploy", exact=True).click()
    wait_done(page, "Deploy")
    assert done(page) == STEPS[:2]
    wrong += accessibility.found(page, axe)

    page.get_by_role("link", name="Open playground").click()
    text, entities = NER[0]
    field = page.get_by_label("Text", exact=True)
    field.click()
    field.fill(text)
    page.get_by_role("button", name="Classify", exact=True).click()
    page.locator("mark").first.wait_for()
    words = page.locator("mark").evaluate_all("all => all.map(one => one.firstChild.textContent)")
    assert words == [word for word, _ in entities]
    assert 0 < page.evaluate("() => Number(localStorage.clicks)") <= MOST_CLICKS

    page.get_by_role("link", name="Overview").click()
    wait_done(page, "Try it")
    assert done(page) == STEPS[:3]
    page.get_by_role("button", name="Create a key").click()
    wait_done(page, "Call it from your code")
    wrong += accessibility.found(page, axe)
    assert wrong == []
    for title, run in (("curl", run_shell), ("Python", run_python), ("Command line", run_command)):
        steps(page).get_by_role("button", name=title, exact=True).click()
        program = steps(page).locator("pre").inner_text()
        assert "sk-" in program
        kinds = {span["entity_group"] for span in run(program)}
        assert kinds == {"PER", "ORG", "LOC"}, program
    [key] = [
        key
        for key in Cli(server.base_url, server.operator_key).json("keys", "list")
        if key["scope"] == "deployment"
    ]
    assert key["name"] == "names"

    # All steps are done, so the next visit shows no steps.
    page.reload()
    page.get_by_role("link", name="names", exact=True).wait_for()
    steps(page).wait_for(state="detached")


def run_shell(program: str) -> list[dict[str, str]]:
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def run_python(program: str) -> list[dict[str, str]]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(
            compile(
                program.replace("print(answer.json())", "print(answer.text)"), "copied", "exec"
            ),
            {},
        )
    return json.loads(out.getvalue())


def run_command(program: str) -> list[dict[str, str]]:
    *exports, command = program.splitlines()
    settings = dict(line.removeprefix("export ").split("=", 1) for line in exports)
    cli = Cli(settings["STOKER_BASE_URL"], settings["STOKER_API_KEY"])
    return cli.json(*shlex.split(command)[1:])


def test_a_folder_without_a_model_can_be_replaced(operator: "Page", tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}')
    operator.locator(".drop").wait_for()
    drop(operator, ".drop", broken)
    steps(operator).get_by_role("alert").wait_for()
    assert "broken: config.json" in steps(operator).get_by_role("alert").inner_text()
    assert done(operator) == []
    drop(operator, ".drop", MODELS / "tiny-sentiment")
    wait_done(operator, "Choose a model folder")
    assert operator.get_by_label("Model id").input_value() == "tiny-sentiment"


def test_hidden_steps_stay_hidden(operator: "Page", server: Server) -> None:
    key = (server.data_dir / "account-key").read_text().strip()
    folder = str(MODELS / "tiny-sentiment")
    pushed = Cli(server.base_url, key).run(
        "artifacts", "push", folder, "--name", "m", "--deploy", "m"
    )
    assert pushed.returncode == 0, pushed.stderr
    # The page follows what the command line does.
    wait_done(operator, "Deploy")
    operator.get_by_role("button", name="Hide").click()
    steps(operator).wait_for(state="detached")
    operator.reload()
    operator.get_by_role("link", name="m", exact=True).wait_for()
    assert steps(operator).count() == 0


def test_no_account_stays_selected(operator: "Page", server: Server) -> None:
    operator.locator(".account-choice select").select_option(label="No account")
    operator.get_by_role("heading", name="Machine").wait_for()
    operator.reload()
    operator.get_by_role("heading", name="Machine").wait_for()
    wait_account(operator, "No account")
    # A new sign-in selects the account again.
    operator.get_by_role("button", name="Sign out").click()
    console.sign_in(operator, server.operator_key)
    operator.get_by_role("heading", name="Overview").wait_for()
    wait_account(operator, DEFAULT_ACCOUNT)


def test_without_the_account_an_operator_sees_the_machine(
    server: Server, opened_at: console.Opener
) -> None:
    with server.client(server.operator_key) as client:
        [account] = client.get("/v1/accounts").json()["data"]
        client.patch(f"/v1/accounts/{account['id']}", json={"name": "team"}).raise_for_status()
    page = console.sign_in(opened_at(f"{server.base_url}/console/"), server.operator_key)
    page.get_by_role("heading", name="Machine").wait_for()
    wait_account(page, "No account")
