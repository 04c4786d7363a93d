from datetime import timedelta
from typing import Any

import pytest

from stoker.cli import output
from stoker.cli.call import parsed_parameters
from stoker.cli.keys import duration
from stoker.client.errors import WrongUseError


class TestParameters:
    @pytest.mark.parametrize(
        ("parameter", "value"),
        [
            ("x=3", 3),
            ("x=0.5", 0.5),
            ("x=true", True),
            ("x=null", None),
            ('x=["a", "b"]', ["a", "b"]),
            ('x={"a": 1}', {"a": 1}),
            ('x="3"', "3"),
            ("x=simple", "simple"),
            ("x=a=b", "a=b"),
            ("x=", ""),
            ("x=NaN", "NaN"),
            ("x=[broken", "[broken"),
        ],
    )
    def test_reads_json_or_else_text(self, parameter: str, value: Any) -> None:
        assert parsed_parameters([parameter]) == {"x": value}

    def test_takes_several(self) -> None:
        assert parsed_parameters(["a=1", "b=x", "a=2"]) == {"a": 2, "b": "x"}

    @pytest.mark.parametrize("parameter", ["top_k", "=3", ""])
    def test_refuses_other_forms(self, parameter: str) -> None:
        with pytest.raises(WrongUseError, match="NAME=VALUE"):
            parsed_parameters([parameter])


class TestDuration:
    @pytest.mark.parametrize(
        ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43200), ("30d", 2592000)]
    )
    def test_reads(self, text: str, seconds: int) -> None:
        assert duration(text) == timedelta(seconds=seconds)

    @pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5h", "1 d", "30D"])
    def test_refuses(self, text: str) -> None:
        with pytest.raises(WrongUseError, match="is not a duration"):
            duration(text)


class TestOutput:
    @pytest.mark.parametrize(
        ("count", "shown"),
        [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (438_000_000, "438.0 MB"), (None, "")],
    )
    def test_size(self, count: int | None, shown: str) -> None:
        assert output.size(count) == shown

    def test_nothing_of_others_steers_the_terminal(self) -> None:
        assert output.printable("a\x1b[2Jb\u202ec\nd\te") == "a\ufffd[2Jb\ufffdc\ufffdd\te"
