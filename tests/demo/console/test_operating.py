"""Versions and trials by clicks: the page shows and does the same as the API reports."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stoker.demo.setup import MODELS
from tests.artifacts.support import eventually
from tests.demo.console.conftest import Opener, account_key, sign_in
from tests.support.deploying import deploy, wait_for
from tests.support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

At = Callable[[str], str]
ASKED = 6
TRIAL_MS = 240_000


@pytest.fixture
def client(demo: Server) -> httpx.Client:
    return demo.account("operating")


def facts(region: "Locator") -> dict[str, str]:
    names, values = region.locator("dt"), region.locator("dd")
    return dict(zip(names.all_inner_texts(), values.all_inner_texts(), strict=True))


def test_versions_share_calls_and_take_over(opened: Opener, client: httpx.Client, at: At) -> None:
    made = deploy(client, MODELS / "tiny-sentiment", "shared", readiness="hot")
    path = f"/v1/deployments/{made['id']}"
    wait_for(client, made["id"], "ready")
    page = sign_in(opened(), account_key(client))
    page.goto(at(f"deployments/{made['id']}/versions"))
    page.get_by_role("button", name="New version").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Precision").select_option("bfloat16")
    dialog.get_by_label("Promote manually").check()
    dialog.get_by_role("button", name="Create").click()
    page.get_by_role("button", name="Promote", exact=True).wait_for()
    first, second = (
        client.get(f"{path}/versions", params={"order": "asc"}).raise_for_status().json()["data"]
    )
    assert (first["dtype"], second["dtype"]) == ("auto", "bfloat16")

    weight, copies = page.locator("input[type=range]").all()
    weight.fill("25")
    page.get_by_text("Version 1: 75 %, version 2: 25 %").wait_for()
    split = page.get_by_role("img", name="Traffic: version 1 75 %, version 2 25 %")
    parts = split.locator(".segment").evaluate_all("all => all.map(one => one.offsetWidth)")
    assert parts[0] == pytest.approx(3 * parts[1], rel=0.02)
    copies.fill("100")
    page.get_by_text("Mirror to version 2: 100 % of calls").wait_for()
    page.get_by_role("button", name="Save", exact=True).click()
    region = page.get_by_role("region", name="Comparison of version 2")
    region.wait_for()
    traffic = client.get(path).json()["traffic"]
    assert traffic["weights"] == {first["id"]: 75, second["id"]: 25}
    assert traffic["mirror"] == {second["id"]: 100}

    # All calls go to the live version, so that each has one copy.
    weight.fill("0")
    page.get_by_role("button", name="Save", exact=True).click()
    assert eventually(lambda: client.get(path).json()["traffic"]["weights"] == {first["id"]: 100})
    comparison = f"{path}/versions/{second['id']}/comparison"
    before = client.get(comparison).json()["compared"]
    for number in range(ASKED):
        body = {"model": "shared", "inputs": f"What a wonderful day, the {number}th!"}
        client.post("/v1/classifications/text", json=body).raise_for_status()
    assert eventually(lambda: client.get(comparison).json()["compared"] == before + ASKED)
    report = client.get(comparison).json()
    region.locator("dd").first.get_by_text(str(before + ASKED), exact=True).wait_for()
    equal, differing = report["compared"] - report["differing"], report["differing"]
    region.get_by_role(
        "img", name=f"Answers: {equal} agree, {differing} differ, {report['failed']} failed"
    ).wait_for()
    assert facts(region)["Equal top labels"] == f"{100 * report['equal_top_labels']:.1f} %"
    largest = float(facts(region)["Largest difference"])
    assert largest == pytest.approx(report["difference"], rel=0.01)

    page.get_by_role("button", name="Promote", exact=True).click()
    assert eventually(lambda: client.get(path).json()["version_id"] == second["id"])
    row = page.locator(".version-list li", has_text="Version 2")
    row.get_by_text("live", exact=True).wait_for()
    page.get_by_role("button", name="Roll back").click()
    assert eventually(lambda: client.get(path).json()["version_id"] == first["id"])
    page.locator(".version-list li", has_text="Version 1").get_by_text(
        "live", exact=True
    ).wait_for()
    client.delete(path).raise_for_status()


def in_few_ways(route: "Route") -> None:
    """Restricts the page's trial to one engine and dtype, for speed. tests/trials covers all
    combinations.
    """
    if route.request.method != "POST":
        route.continue_()
        return
    assert route.request.post_data_json == {}
    route.continue_(post_data='{"engines": ["torch"], "dtypes": ["bfloat16"]}')


def test_other_versions_keep_their_shares(opened: Opener, client: httpx.Client, at: At) -> None:
    made = deploy(client, MODELS / "tiny-sentiment", "split", readiness="warm")
    path = f"/v1/deployments/{made['id']}"
    wait_for(client, made["id"], "ready")
    for dtype in ("bfloat16", "float32"):
        body = {"dtype": dtype, "promote": "manual"}
        number = client.post(f"{path}/versions", json=body).raise_for_status().json()["number"]

        def is_prepared(number: int = number) -> bool:
            rows = client.get(f"{path}/versions").json()["data"]
            return [row["status"] for row in rows if row["number"] == number] == ["ready"]

        assert eventually(is_prepared)
    rows = client.get(f"{path}/versions", params={"order": "asc"}).json()["data"]
    first, second, third = (row["id"] for row in rows)
    body = {"weights": {first: 60, second: 30, third: 10}, "mirror": {third: 5}}
    client.put(f"{path}/traffic", json=body).raise_for_status()

    page = sign_in(opened(), account_key(client))
    page.goto(at(f"deployments/{made['id']}/versions"))
    page.get_by_label("Candidate version").select_option(second)
    weight = page.locator("input[type=range]").first
    assert weight.get_attribute("max") == "90"
    weight.fill("20")
    page.get_by_role("button", name="Save", exact=True).click()
    changed = {first: 70, second: 20, third: 10}
    assert eventually(lambda: client.get(path).json()["traffic"]["weights"] == changed)
    assert client.get(path).json()["traffic"]["mirror"] == {third: 5}


def test_a_way_that_was_tried_is_used(opened: Opener, client: httpx.Client, at: At) -> None:
    made = deploy(client, MODELS / "tiny-ner", "tried")
    path = f"/v1/deployments/{made['id']}"
    page: Page = sign_in(opened(), account_key(client))
    page.goto(at(f"deployments/{made['id']}/trials"))
    page.route("**/trials", in_few_ways)
    page.get_by_role("button", name="Run trial").click()
    page.get_by_role("main").get_by_text("completed", exact=True).first.wait_for(timeout=TRIAL_MS)
    trial = client.get(f"{path}/trials").json()["data"][0]
    measured: list[dict[str, Any]] = [entry for entry in trial["rows"] if entry["items_per_s"]]
    assert len(measured) > 1
    # Each measured row has one dot. A faster row is further to the right.
    page.locator(".scatter .dot").nth(len(measured) - 1).wait_for()
    dots = page.locator(".scatter .dot").evaluate_all("all => all.map(o => o.cx.baseVal.value)")
    assert len(dots) == len(measured)
    by_speed = sorted(range(len(dots)), key=lambda at: measured[at]["items_per_s"])
    assert by_speed == sorted(range(len(dots)), key=lambda at: dots[at])

    shown = page.get_by_role("region", name="Trial results").locator("tbody tr")
    speedups = [row.locator("td").nth(4).inner_text()[:-1] for row in shown.all()]
    assert speedups == [
        f"{entry['items_per_s'] / measured[0]['items_per_s']:.2f}" for entry in measured
    ]
    agreeing = [entry for entry in measured if entry["status"] == "measured"]
    if len(agreeing) > 1:
        winner = measured.index(max(agreeing, key=lambda entry: entry["items_per_s"]))
        assert "fastest" in shown.nth(winner).inner_text()
        ring = page.locator(".scatter .winner").evaluate("one => one.cx.baseVal.value")
        assert ring == dots[winner]
    chosen = next(entry for entry in measured if entry["dtype"] == "bfloat16")
    name = " · ".join(
        filter(None, (chosen["engine"], chosen["dtype"], chosen.get("weight_format")))
    )
    page.get_by_role("button", name=f"Apply {name}", exact=True).click()
    page.get_by_role("button", name="Create version").click()
    assert eventually(
        lambda: (
            client.get(path).json()["dtype"] == "bfloat16"
            and client.get(path).json()["engine"] == chosen["engine"]
        )
    )
    page.get_by_role("dialog").wait_for(state="detached")
    client.delete(path).raise_for_status()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("tiny-sentiment", {"status": 200, "top_label": "positive"}),
        ("tiny-ner", {"status": 200, "contains": "Maria Schmidt"}),
        ("tiny-encoder", None),
    ],
)
def test_an_example_of_a_check_passes(
    opened: Opener, client: httpx.Client, at: At, model: str, expected: dict[str, Any] | None
) -> None:
    made = deploy(client, MODELS / model, f"checked-{model}")
    path = f"/v1/deployments/{made['id']}"
    page: Page = sign_in(opened(), account_key(client))
    page.goto(at(f"deployments/{made['id']}/checks"))
    field = page.get_by_label("Checks (JSON)")
    field.fill('[\n  {"name": }\n]')
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("alert").get_by_text(
        "The checks are not valid JSON, line 2, column 12"
    ).wait_for()
    field.fill("")
    page.get_by_role("button", name="Add example").click()
    page.wait_for_function("() => document.querySelector('textarea.code').value")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("Checks have not run yet.").wait_for()
    [check] = client.get(f"{path}/checks").json()["checks"]
    expect = {name: value for name, value in check["expect"].items() if value is not None}
    if expected is None:
        assert len(expect["cosine_min"]["vector"]) > 8
    else:
        assert expect == expected
    page.get_by_role("button", name="Run checks").click()
    page.get_by_text("1 of 1 checks passed").wait_for()
    client.delete(path).raise_for_status()


def test_artifacts_of_one_name_can_be_told_apart(
    opened: Opener, client: httpx.Client, at: At
) -> None:
    made = deploy(client, MODELS / "tiny-sentiment", "twice")
    other = deploy(client, MODELS / "tiny-sentiment", "twice-again")
    ids = [one["artifact_id"] for one in (made, other)]
    for artifact in ids:
        client.patch(
            f"/v1/model-artifacts/{artifact}", json={"display_name": "same name"}
        ).raise_for_status()
    page: Page = sign_in(opened(), account_key(client))
    page.goto(at(f"deployments/{made['id']}/versions"))
    page.get_by_role("button", name="New version").click()
    options = page.get_by_role("dialog").get_by_label("Artifact").locator("option")
    options.nth(2).wait_for(state="attached")
    shown = [text for text in options.all_inner_texts() if text.startswith("same name")]
    assert len(shown) == 2
    assert all(any(f"…{artifact[-6:]}" in text for text in shown) for artifact in ids)

    page.goto(at("artifacts"))
    rows = page.locator("main tbody tr")
    rows.nth(1).wait_for()
    page.get_by_label("Filter artifacts").fill(ids[0])
    page.wait_for_function("() => document.querySelectorAll('main tbody tr').length === 1")
    assert f"…{ids[0][-6:]}" in rows.first.inner_text()
    for one in (made, other):
        client.delete(f"/v1/deployments/{one['id']}").raise_for_status()
