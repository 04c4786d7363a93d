import pytest

from tests.cli.support import Cli
from tests.support.server import Server


@pytest.fixture
def operator(server: Server) -> Cli:
    return Cli(server.base_url, server.operator_key)


def test_set_and_shown(cli: Cli, operator: Cli) -> None:
    account = cli.json("credits")["account_id"]
    before = cli.json("accounts", "quotas")["quotas"]["agents"]
    changed = operator.json("accounts", "limit", account, "agents=7", "runs=0")
    assert changed["quotas"] == {"agents": 7, "runs": 0}
    shown = cli.json("accounts", "quotas")["quotas"]
    assert (shown["agents"]["limit"], shown["runs"]["limit"]) == (7, None)
    assert "upload_sessions" in cli.run("accounts", "quotas").stdout
    assert operator.json("accounts", "limit", account, "agents=", "runs=")["quotas"] == {}
    assert cli.json("accounts", "quotas")["quotas"]["agents"] == before


@pytest.mark.parametrize("text", ["agents", "agents=many", "agents=-1", "agents=1.5"])
def test_bad_limit(operator: Cli, text: str) -> None:
    assert operator.run("accounts", "limit", "acct_x", "--", text).returncode == 2


def test_only_operators_set(cli: Cli) -> None:
    assert "invalid_api_key" in cli.run("accounts", "limit", "acct_x", "agents=1").stderr
