"""docs/grafana.json queries only metrics that a server exports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from tests.deployments.support import bert, call
from tests.support.deploying import deploy
from tests.support.scraping import Scrape, scrape
from tests.support.server import Server
from tools.reference.metrics import labels_of, sections

PAGE = Path(stoker.__file__).parents[1] / "docs" / "grafana.json"
DASHBOARD: dict[str, Any] = json.loads(PAGE.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
}


@pytest.fixture(scope="module")
def told(server: Server) -> Iterator[Scrape]:
    server.wait_ready()
    with server.account("dashboard") as client, server.client(server.operator_key) as operator:
        deploy(client, bert(), "seen")
        call(client, "seen").raise_for_status()
        yield scrape(operator)


def test_panels_are_whole() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    places = [tuple(panel["gridPos"].values()) for panel in DASHBOARD["panels"]]
    assert len(places) == len(set(places))
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {
        "datasource",
        "account",
        "model",
    }


def metrics_of(query: str) -> set[str]:
    return set(re.findall(r"\b(?:stoker|process)_\w+", query))


@pytest.mark.parametrize("query", QUERIES)
def test_metrics_and_labels_exist(told: Scrape, query: str) -> None:
    known = {
        family.name + suffix: family
        for family in told.families.values()
        for suffix in SUFFIXES.get(family.type, ("",))
    }
    assert metrics_of(query)
    for name in metrics_of(query):
        assert name in known, query
        has = {label for sample in known[name].samples for label in sample.labels}
        grouped = ",".join(re.findall(r"by \(([^)]*)\)", query))
        selected = re.findall(r"(\w+)(?:=|!)~?\"", query)
        labels = {label.strip() for label in (*grouped.split(","), *selected)} - {""}
        # Metrics of events that have not occurred have no samples with labels.
        if has:
            assert labels <= has, query


def test_every_metric_of_ours_is_shown(told: Scrape) -> None:
    shown = {name for query in QUERIES for name in metrics_of(query)}
    missing = [
        family.name
        for family in told.families.values()
        if family.name.startswith("stoker_")
        and not shown & {family.name + suffix for suffix in SUFFIXES[family.type]}
    ]
    assert missing == ["stoker_build"]


def test_the_reference_lists_what_the_server_exports(told: Scrape) -> None:
    listed = {family.name: family for group in sections().values() for family in group}
    exported = {name: family for name, family in told.families.items() if name[:7] == "stoker_"}
    # Only the port of a node has this metric.
    assert listed.keys() - exported.keys() == {"stoker_node_connections_refused"}
    assert exported.keys() <= listed.keys()
    for name, family in exported.items():
        assert (family.type, family.documentation) == (
            listed[name].type,
            listed[name].documentation,
        )
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        row = labels_of(listed[name])
        assert labels in (set(), {*row}), (name, row)
