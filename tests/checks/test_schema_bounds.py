"""Limits on a schema, which are checked before it is compiled."""

import json
import time
from typing import Any

import pytest

from stoker.workloads.evaluation.checks.schema_bounds import MAX_REPEATED, MAX_STEPS, excess
from tests.checks.support import doubling


def patterns(*given: str) -> dict[str, Any]:
    return {"allOf": [{"pattern": pattern} for pattern in given]}


@pytest.mark.case(27)
@pytest.mark.parametrize("levels", [20, 64, 1000])
def test_references_that_double_are_refused(levels: int) -> None:
    began = time.process_time()
    message = excess(doubling(levels))
    # A chain of a thousand definitions is also nested too deep.
    assert f"more than {MAX_STEPS} steps" in message or (levels == 1000 and "deep" in message)
    assert time.process_time() - began < 2


@pytest.mark.case(27)
@pytest.mark.parametrize(
    "schema",
    [
        patterns("(a{1,1000}){1,30}x"),
        patterns("((a{100}){100}){100}"),
        patterns(*["[a-z\\]{]{1,1000}"] * 21),
        {"patternProperties": {"(?:a|b{500}){50}": {}}},
        patterns("(a{9999,}){9}"),
    ],
)
def test_repetitions_that_multiply_are_refused(schema: dict[str, Any]) -> None:
    assert f"the limit is {MAX_REPEATED}" in excess(schema)


def test_deep_ones_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"items": deep}
    assert "levels deep" in excess(deep)


TREE = {
    "$defs": {
        "node": {
            "properties": {
                "value": {"type": "number"},
                "children": {"items": {"$ref": "#/$defs/node"}},
                "other": {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]},
            }
        }
    },
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        doubling(12),
        {"properties": {"$ref": {"type": "string"}, "pattern": {"const": "x{1,9}"}}},
        {"enum": [{"$ref": "#/none"}], "$ref": "#/nowhere/0"},
        patterns(r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})$"),
        patterns("^.{0,5000}$", r"^[\w{},.-]{1,64}@(?:[a-z0-9-]{1,63}\.){1,10}[a-z]{2,63}$"),
        patterns("(", "[", "a{", "\\", "){3}", "[^]{9}"),
        {"items": {"properties": {str(at): {"type": "string"} for at in range(2000)}}},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_ordinary_ones_pass(schema: dict[str, Any]) -> None:
    assert excess(schema) == ""
