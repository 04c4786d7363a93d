"""docs/cli.md lists all commands, and the calls in the docs are calls of commands that exist."""

import pytest

from stoker.cli.panels import PANELS
from tests.cli.support import Cli
from tools import cli_reference


def test_page_lists_all_commands() -> None:
    assert cli_reference.PAGE.read_text() == cli_reference.page(), (
        "run: python -m tools.cli_reference"
    )


def test_every_command_is_in_one_group() -> None:
    grouped = [name for names in PANELS.values() for name in names]
    assert sorted(grouped) == sorted(cli_reference.root().commands)


def test_help_shows_the_groups() -> None:
    text = Cli("http://127.0.0.1:9").run("--help").stdout
    places = [text.index(f" {title} ") for title in PANELS]
    assert places == sorted(places)
    assert "Commands" not in text
    assert text.index("serve") < text.index(" Calls ") < text.index("transcribe")


def test_options_have_their_defaults_and_variables() -> None:
    page = cli_reference.page()
    assert "| `--port NUMBER` | `8000` | `STOKER_PORT` | Port. 0 picks a free port. |" in page
    assert "| `--base-url TEXT` |  | `STOKER_BASE_URL` | Address of the server. Default:" in page
    assert "| `--api-key TEXT` |  | `STOKER_API_KEY` |" in page
    assert "| `--parallel NUMBER` | `4` |  | Parts to send in parallel. From 1 to 32. |" in page
    assert "| `--readiness cold/warm/hot` |" in page
    assert "### stoker artifacts push" in page
    assert "stoker artifacts push PATH [OPTIONS]" in page


@pytest.mark.parametrize(
    ("call", "path", "given"),
    [
        ("stoker --account acct_1 deployments list", ("deployments", "list"), []),
        ("stoker call tiny-ner 'a b' -p x=1", ("call",), ["tiny-ner", "a b", "-p", "x=1"]),
        ("stoker --install-completion", (), []),
        ("stoker credits", ("credits",), []),
        ("stoker keys", (), []),
    ],
)
def test_words_of_a_call(call: str, path: tuple[str, ...], given: list[str]) -> None:
    assert cli_reference.words(call, cli_reference.root()) == (path, given)


def test_a_call_of_no_command_is_reported() -> None:
    with pytest.raises(LookupError, match="there is no command 'keys forge'"):
        cli_reference.words("stoker keys forge", cli_reference.root())
