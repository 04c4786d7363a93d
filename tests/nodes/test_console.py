"""The console's page of nodes on a real fleet shows the nodes that the API returns."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stoker.demo
from tests.demo.console import conftest as console
from tests.demo.console import test_accessibility as accessibility
from tests.nodes.support import Fleet
from tests.nodes.test_listing import another, ask, eventually, leases, nodes
from tests.support.deploying import deploy

if TYPE_CHECKING:
    from playwright.sync_api import Page

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
browser, opened_at, axe = console.browser, console.opened_at, accessibility.axe
SIZES = [("light", 1440), ("dark", 1440), ("light", 390), ("dark", 390), ("light", 2560)]


@pytest.fixture
def operator(opened_at: console.Opener, fleet_of_two: Fleet) -> "Page":
    """Signs in at the first gateway with the operator's key."""
    gateway = fleet_of_two.gateways[0]
    page = opened_at(f"{gateway.base_url}/console/")
    return console.sign_in(page, gateway.operator_key)


def test_nodes_and_what_they_run(operator: "Page", fleet_of_two: Fleet) -> None:
    first, _ = fleet_of_two.account()
    made = deploy(first, MODEL, "on-a-node")
    ask(first, "on-a-node")
    gateway = fleet_of_two.gateways[0]
    [(node_id, lease)] = eventually(
        lambda: [entry for entry in leases(gateway, made["id"]) if entry[1]["replicas"]]
    )
    operator.get_by_role("link", name="Nodes", exact=True).click()
    operator.get_by_role("heading", name="Nodes", exact=True).wait_for()
    for node in nodes(gateway):
        card = operator.locator("section", has_text=node["id"])
        card.get_by_text("ready", exact=True).first.wait_for()
        card.get_by_text(f"{node['id']}, at {node['address']}", exact=True).wait_for()
    row = operator.locator("section", has_text=node_id).get_by_role("row")
    row = row.filter(has_text="on-a-node")
    row.get_by_text(str(lease["replicas"][0]["pid"]), exact=True).wait_for()
    # The link opens the deployment and selects its account.
    row.get_by_role("link", name="on-a-node").click()
    operator.get_by_role("heading", name="on-a-node").wait_for()
    assert operator.url.endswith(f"/console/deployments/{made['id']}")
    first.delete(f"/v1/deployments/{made['id']}").raise_for_status()


def test_follows_what_comes_and_goes(operator: "Page", fleet_of_two: Fleet) -> None:
    operator.get_by_role("link", name="Nodes", exact=True).click()
    operator.get_by_text("2 nodes, ", exact=False).wait_for()
    with another(fleet_of_two, "passing") as node:
        card = operator.locator("section", has_text=node.id)
        card.get_by_text("ready", exact=True).wait_for()
        node.kill()
        card.get_by_text("unreachable", exact=True).wait_for()
        card.wait_for(state="detached")


def test_for_operators_alone(opened_at: console.Opener, fleet_of_two: Fleet) -> None:
    gateway = fleet_of_two.gateways[0]
    key = console.account_key(fleet_of_two.account()[0])
    page = console.sign_in(opened_at(f"{gateway.base_url}/console/"), key)
    assert page.get_by_role("link", name="Machine", exact=True).count() == 1
    assert page.get_by_role("link", name="Nodes", exact=True).count() == 0
    page.goto(f"{gateway.base_url}/console/nodes")
    page.get_by_text("Only operators can see this page.").wait_for()


@pytest.fixture(scope="module")
def loaded(fleet_of_two: Fleet) -> Iterator[dict[str, Any]]:
    """Yields a deployment with a replica on each node."""
    client, _ = fleet_of_two.account()
    replicas = {"min": 2, "max": 2}
    made = deploy(client, MODEL, "on-both-nodes", readiness="warm", replicas=replicas)
    gateway = fleet_of_two.gateways[0]
    eventually(
        lambda: sum(bool(lease["replicas"]) for _, lease in leases(gateway, made["id"])) == 2
    )
    yield made
    client.delete(f"/v1/deployments/{made['id']}").raise_for_status()


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(("theme", "width"), SIZES)
def test_can_be_read_by_all(
    opened_at: console.Opener, fleet_of_two: Fleet, axe: str, theme: Any, width: int
) -> None:
    gateway = fleet_of_two.gateways[0]
    page = opened_at(
        f"{gateway.base_url}/console/",
        color_scheme=theme,
        viewport={"width": width, "height": 900},
    )
    page.add_init_script(accessibility.WATCH_SHIFTS)
    page.get_by_label("API key").fill(gateway.operator_key)
    page.get_by_role("button", name="Sign in").click()
    page.locator(".shell").wait_for()
    page.goto(f"{gateway.base_url}/console/nodes")
    page.get_by_role("cell", name="on-both-nodes").nth(1).wait_for()
    wrong = accessibility.found(page, axe)
    assert wrong + accessibility.of_window(page, width) == []
