import csv
import io

import pytest

from tests.cli.support import Cli
from tests.support.server import Server


@pytest.fixture
def operator(server: Server) -> Cli:
    return Cli(server.base_url, server.operator_key)


class TestUsage:
    def test_of_nothing(self, cli: Cli) -> None:
        assert cli.json("usage")["total"]["requests"] == 0
        assert "No usage in this period." in cli.run("usage", "--by", "hour").stderr

    def test_as_csv(self, cli: Cli) -> None:
        done = cli.run("usage", "--csv", "--by", "day", "--start", "2026-01-01", "--end",
                       "2026-02-01")  # fmt: skip
        assert done.returncode == 0, done.stderr
        (head,) = csv.reader(io.StringIO(done.stdout))
        assert head[:3] == ["start", "end", "deployment_id"]

    def test_bad_range(self, cli: Cli) -> None:
        assert "param: start" in cli.run("usage", "--start", "yesterday").stderr

    def test_for_an_operator(self, cli: Cli, operator: Cli) -> None:
        account = cli.json("credits")["account_id"]
        assert "param: x-stoker-account" in operator.run("usage").stderr
        assert operator.json("usage", "--account", account) == cli.json("usage")


class TestCredits:
    def test_grant_and_correction(self, cli: Cli, operator: Cli) -> None:
        account = cli.json("credits")["account_id"]
        moved = operator.json("credits", "grant", account, "12.5", "--note", "a present")
        assert (moved["microcredits"], moved["note"]) == (12_500_000, "a present")
        assert "1000012.500000" in cli.run("credits").stdout
        operator.json("credits", "grant", account, "12.500001", "--correction")
        assert cli.json("credits")["balance"] == "999999.999999"

    @pytest.mark.parametrize("amount", ["much", "1.0000001", "nan", "inf", "-1"])
    def test_bad_amount(self, operator: Cli, amount: str) -> None:
        assert operator.run("credits", "grant", "acct_x", "--", amount).returncode == 2

    def test_only_operators_grant(self, cli: Cli) -> None:
        assert "invalid_api_key" in cli.run("credits", "grant", "acct_x", "1").stderr


class TestPrices:
    def test_set_for_later(self, cli: Cli, operator: Cli) -> None:
        posted = operator.json("prices", "set", "1.25", "0.5", "--from", "2098-01-01T00:00:00Z")
        assert posted["memory_microcredits_per_gib_hour"] == 1_250_000
        assert posted["flex_microcredits_per_gib_hour"] == 625_000
        assert posted in cli.json("prices")
        assert "2098-01-01 00:00:00" in cli.run("prices").stdout

    def test_of_background_work(self, operator: Cli) -> None:
        posted = operator.json(
            "prices", "set", "1", "1", "--flex", "0.25", "--from", "2098-02-01T00:00:00Z"
        )
        assert posted["flex_microcredits_per_gib_hour"] == 250_000
        refused = operator.run("prices", "set", "1", "1", "--flex", "1.5")
        assert refused.returncode == 2
        assert "--flex with at most 1 credits" in refused.stderr
