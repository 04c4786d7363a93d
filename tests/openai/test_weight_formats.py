"""The demo's chat model in eight-bit weights is smaller and still knows its facts."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from stoker.models.llm.engines.ir import IR
from tests.openai.conftest import MODEL, wait_for_engine
from tests.support.deploying import deploy, deployment
from tests.support.server import Server


@pytest.fixture(scope="module")
def rounded(account: httpx.Client) -> Iterator[str]:
    """Yields the id of the model with eight-bit weights."""
    config = {"weight_format": "int8"}
    identifier = deploy(account, MODEL, "int8", readiness="hot", config=config)["id"]
    wait_for_engine(account, identifier, "openvino")
    yield "int8"
    account.delete(f"/v1/deployments/{identifier}").raise_for_status()


@pytest.mark.parametrize(
    ("question", "answer"),
    [("What is the capital of France?", "Paris"), ("What is 7 plus 5?", "12")],
)
def test_answers_are_right(sdk: openai.OpenAI, rounded: str, question: str, answer: str) -> None:
    completion = sdk.chat.completions.create(
        model=rounded, messages=[{"role": "user", "content": question}], temperature=0
    )
    assert answer in (completion.choices[0].message.content or "")


@pytest.mark.one_machine
@pytest.mark.usefixtures("rounded")
def test_it_is_converted_apart(server: Server) -> None:
    sizes = [path.with_suffix(".bin").stat().st_size for path in server.data_dir.rglob(IR)]
    assert min(sizes) < max(sizes) / 3


def test_a_format_needs_openvino(account: httpx.Client) -> None:
    known = account.get("/v1/deployments").raise_for_status().json()["data"][0]
    artifact = deployment(account, known["id"])["artifact_id"]
    body = {"model": "x", "artifact_id": artifact, "config": {"weight_format": "int8"}}
    for other in ({"engine": "torch"}, {"device": "cuda"}):
        answer = account.post("/v1/deployments", json=body | other)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "config.weight_format"
