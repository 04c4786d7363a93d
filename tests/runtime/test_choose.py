import pytest

from stoker.base.config import Settings
from stoker.runtime import choose
from stoker.runtime.choose import RUNTIMES, UnknownRuntimeError
from stoker.runtime.local.runtime import LocalRuntime
from stoker.server.app import create_app
from tests.cli.support import Cli


def test_this_machine_is_the_default():
    assert choose.builder(Settings.model_fields["runtime"].default) is LocalRuntime


@pytest.mark.parametrize("name", RUNTIMES)
def test_each_of_the_table_is_there(name: str):
    assert choose.builder(name)


def test_one_that_is_installed_beside_the_server():
    from tests.runtime.in_process import InProcessRuntime

    assert choose.builder("tests.runtime.in_process:InProcessRuntime") is InProcessRuntime


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("cloud", "Unknown runtime 'cloud'. Use one of local, nodes, ray, or a custom runtime"),
        ("no_such_module:Runtime", "cannot be imported: No module named 'no_such_module'"),
        (
            "stoker.base.config:Runtime",
            "cannot be imported: module 'stoker.base.config' has no attribute",
        ),
        ("no module:Runtime", "cannot be imported: invalid format"),
        ("stoker.base.config:MIB", "is not callable, so it cannot build a runtime"),
    ],
)
def test_a_wrong_name_says_what_is_right(name: str, why: str):
    with pytest.raises(UnknownRuntimeError) as caught:
        choose.builder(name)
    assert why in str(caught.value)


def test_no_server_starts_without_one(tmp_path):
    with pytest.raises(UnknownRuntimeError, match="Use one of local"):
        create_app(Settings(data_dir=tmp_path / "data", runtime="cloud"))
    assert not (tmp_path / "data").exists(), "nothing was begun"


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_the_command_says_so_in_a_line(tmp_path, command: str):
    cli = Cli("", settings={"STOKER_RUNTIME": "cloud", "STOKER_DATA_DIR": str(tmp_path)})
    done = cli.run(command, "--port", "0")
    assert done.returncode == 2
    assert "STOKER_RUNTIME: Unknown runtime 'cloud'. Use one of local" in done.stderr
    assert not list(tmp_path.iterdir())
