"""Adapters that cannot share replicas, over HTTP. They are merged into the weights of separate
replicas.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer

import stoker.demo
from stoker.models.llm.engines.torch import load
from tests.adapters.support import library, made
from tests.llm.support import generated, tiny_llama
from tests.support.deploying import deploy, deployment, push
from tests.support.models import tiny_bert
from tests.support.server import Server

pytestmark = pytest.mark.release

NER = Path(stoker.demo.__file__).parent / "models" / "tiny-ner"
TRANSLATOR = NER.parent / "tiny-translator"
TEXT = "one two three"
TOKENS = 6
DORA: dict[str, Any] = {
    "loader": "AutoModelForCausalLM",
    "task_type": "CAUSAL_LM",
    "target_modules": ["q_proj", "down_proj"],
    "use_dora": True,
}


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("merged") as client:
        yield client


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "base")


@pytest.fixture(scope="module")
def dora(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("adapters") / "dora"
    return folder, made(folder, base, **DORA).merge_and_unload()


@pytest.fixture(scope="module")
def served(
    account: httpx.Client, base: Path, dora: tuple[Path, Any], tmp_path_factory: Any
) -> dict[str, dict[str, Any]]:
    """Deploys the base, a merged adapter and an adapter that shares the base's replicas."""
    plain = tmp_path_factory.mktemp("adapters") / "plain"
    made(plain, base, **(DORA | {"use_dora": False}), seed=2)
    return {
        "base": deploy(account, base, "base"),
        "dora": deploy(account, dora[0], "dora", adapter_of="base", max_queue=40),
        "plain": deploy(account, plain, "plain", adapter_of="base"),
    }


def completed(client: httpx.Client, model: str) -> str:
    body = {"model": model, "prompt": TEXT, "max_tokens": TOKENS, "temperature": 0}
    answer = client.post("/v1/completions", json=body).raise_for_status().json()
    return answer["choices"][0]["text"]


def expected(base: Path, model: Any) -> str:
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    tokens = generated(model, tokenizer(TEXT)["input_ids"], TOKENS)
    return tokenizer.decode(tokens, skip_special_tokens=True)


def test_answers_as_peft_merges_it(
    account: httpx.Client,
    base: Path,
    dora: tuple[Path, Any],
    served: dict[str, dict[str, Any]],
) -> None:
    expected_texts = {
        "base": expected(base, load(base, torch.float32, torch.device("cpu"))),
        "dora": expected(base, dora[1]),
    }
    assert expected_texts["base"] != expected_texts["dora"]
    with ThreadPoolExecutor(8) as threads:
        names = [*expected_texts] * 4
        for name, text in zip(
            names, threads.map(lambda n: completed(account, n), names), strict=True
        ):
            assert text == expected_texts[name]
    completed(account, "plain")
    pids = {
        name: [worker["pid"] for worker in deployment(account, deployed["id"])["workers"]]
        for name, deployed in served.items()
    }
    assert pids["plain"] == pids["base"] != pids["dora"]
    assert len(pids["dora"]) == 1


def storage(client: httpx.Client) -> tuple[int, int]:
    """Returns the account's storage by its quota and the total size of its artifacts."""
    used = client.get("/v1/quotas").raise_for_status().json()["quotas"]["storage_bytes"]["used"]
    listed = client.get("/v1/model-artifacts", params={"limit": 100}).json()["data"]
    return used, sum(artifact["size_bytes"] or 0 for artifact in listed)


@pytest.mark.case(33)
def test_its_copy_of_the_base_counts(server: Server, base: Path, dora: tuple[Path, Any]) -> None:
    weights = (base / "model.safetensors").stat().st_size
    with server.account() as client, server.client(server.operator_key) as operator:
        account = f"/v1/accounts/{client.account_id}"  # type: ignore[attr-defined]
        deploy(client, base, "base")
        made = deploy(client, dora[0], "dora", adapter_of="base")
        used, artifacts = storage(client)
        assert used == artifacts
        limit = {"quotas": {"storage_bytes": used + weights // 2}}
        operator.patch(account, json=limit).raise_for_status()
        body = {"model": "dora", "prompt": TEXT, "max_tokens": 1}
        refused = client.post("/v1/completions", json=body)
        assert refused.status_code == 503
        assert "quota 'storage_bytes'" in refused.json()["error"]["message"]
        assert storage(client)[0] == used
        operator.patch(account, json={"quotas": {"storage_bytes": 1 << 40}}).raise_for_status()
        # Changing the deployment permits another attempt.
        client.patch(f"/v1/deployments/{made['id']}", json={"max_queue": 9}).raise_for_status()
        completed(client, "dora")
        merged = storage(client)[0] - artifacts
        assert weights <= merged < 2 * weights
        client.delete(f"/v1/deployments/{made['id']}").raise_for_status()
        assert storage(client) == (artifacts, artifacts)


def test_what_it_says_of_itself(account: httpx.Client, served: dict[str, dict[str, Any]]) -> None:
    deployments = {name: deployment(account, item["id"]) for name, item in served.items()}
    assert deployments["base"]["adapter"] is None
    assert deployments["plain"]["adapter"] == {"of": "base", "sharing": "shared", "reason": ""}
    about = deployments["dora"]["adapter"]
    assert (about["of"], about["sharing"]) == ("base", "merged")
    assert "DoRA" in about["reason"]
    assert deployments["dora"]["adapter_of"] == "base"
    assert (deployments["dora"]["pipeline"], deployments["dora"]["max_queue"]) == (
        "text-generation",
        40,
    )
    # The claim is as large as the base's, not only as large as the adapter's matrices.
    assert deployments["dora"]["memory"]["bytes"] > 1 << 20
    path = f"/v1/deployments/{served['dora']['id']}"
    events = account.get(f"{path}/events").raise_for_status().json()["data"]
    assert any("has its own replicas" in item["message"] for item in events)
    assert account.patch(path, json={"max_queue": 41}).json()["max_queue"] == 41
    refused = account.patch(path, json={"dtype": "bfloat16"})
    assert refused.json()["error"]["code"] == "is_adapter"
    refused = account.post(f"{path}/versions", json={"engine": "torch"})
    assert refused.json()["error"]["code"] == "is_adapter"


def test_stopped_by_itself(account: httpx.Client, served: dict[str, dict[str, Any]]) -> None:
    path = f"/v1/deployments/{served['dora']['id']}"
    before = completed(account, "dora")
    account.post(f"{path}/stop").raise_for_status()
    with pytest.raises(httpx.HTTPStatusError) as caught:
        completed(account, "dora")
    assert caught.value.response.json()["error"]["code"] == "deployment_stopped"
    completed(account, "base")
    account.post(f"{path}/start").raise_for_status()
    assert completed(account, "dora") == before


def live(account: httpx.Client, identifier: str, number: int) -> dict[str, Any]:
    """Waits until a version is live and returns it."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        versions = account.get(f"/v1/deployments/{identifier}/versions").raise_for_status().json()
        states = {version["number"]: version for version in versions["data"]}
        if number in states and states[number]["status"] in ("live", "failed"):
            assert states[number]["status"] == "live", states[number]
            return states[number]
        time.sleep(0.05)
    raise AssertionError(states)


def test_follows_its_base(
    account: httpx.Client,
    base: Path,
    dora: tuple[Path, Any],
    served: dict[str, dict[str, Any]],
    tmp_path: Path,
) -> None:
    """A merged adapter follows its base to other weights and back, both while it is loaded and
    while it is not.
    """
    import peft

    before = completed(account, "dora")
    changed = load(base, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        changed.model.layers[1].mlp.down_proj.weight *= -1
        changed.lm_head.weight *= -1
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "changed")
    changed.save_pretrained(tmp_path / "changed")
    peft_library: Any = peft
    whole = peft_library.PeftModel.from_pretrained(changed, dora[0]).eval().merge_and_unload()
    path = f"/v1/deployments/{served['base']['id']}/versions"
    body = {"artifact_id": push(account, tmp_path / "changed")["id"]}
    second = account.post(path, json=body).raise_for_status().json()
    live(account, served["base"]["id"], second["number"])
    note = live(account, served["dora"]["id"], 2)["note"]
    assert note == f"Follows version {second['number']} of the base."
    assert completed(account, "dora") == expected(base, whole) != before
    adapter_path = f"/v1/deployments/{served['dora']['id']}"
    account.post(f"{adapter_path}/stop").raise_for_status()
    first = served["base"]["version_id"]
    account.post(f"{path}/{first}/promote").raise_for_status()
    live(account, served["base"]["id"], 1)
    live(account, served["dora"]["id"], 3)
    account.post(f"{adapter_path}/start").raise_for_status()
    assert completed(account, "dora") == before


def test_a_version_of_its_base_that_it_does_not_fit(
    account: httpx.Client, served: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    wide = tiny_llama(tmp_path / "wide", head_size=8)
    # An adapter that shares the base's replicas would prevent this version as well.
    account.delete(f"/v1/deployments/{served['plain']['id']}").raise_for_status()
    path = f"/v1/deployments/{served['base']['id']}/versions"
    body = {"artifact_id": push(account, wide)["id"]}
    version = account.post(path, json=body).raise_for_status().json()
    deadline = time.monotonic() + 60
    while (current := account.get(f"{path}/{version['id']}").json())["status"] != "failed":
        assert time.monotonic() < deadline and current["status"] != "live", current
        time.sleep(0.05)
    assert current["reason"] == "adapter_misfit"
    assert "'dora'" in current["message"]


def test_after_a_restart(
    server: Server, account: httpx.Client, served: dict[str, dict[str, Any]]
) -> None:
    before = completed(account, "dora")
    server.kill()
    server.restart()
    server.wait_ready()
    assert completed(account, "dora") == before


@pytest.mark.one_machine
def test_a_base_stays_while_it_has_one(
    server: Server, account: httpx.Client, served: dict[str, dict[str, Any]]
) -> None:
    path = f"/v1/deployments/{served['base']['id']}"
    refused = account.delete(path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "has_adapters")
    models = server.data_dir / "models"
    assert [folder for folder in models.iterdir() if folder.name.startswith("merged-")]
    account.delete(f"/v1/deployments/{served['dora']['id']}").raise_for_status()
    assert not [folder for folder in models.iterdir() if folder.name.startswith("merged-")]
    with pytest.raises(httpx.HTTPStatusError) as caught:
        completed(account, "dora")
    assert caught.value.response.status_code == 404
    completed(account, "base")
    account.delete(path).raise_for_status()


def test_of_another_base(account: httpx.Client, base: Path, tmp_path: Path) -> None:
    deployed = deploy(account, base, "narrow")
    wide = tiny_llama(tmp_path / "wide", head_size=8)
    made(tmp_path / "adapter", wide, **DORA)
    artifact = push(account, tmp_path / "adapter")["id"]
    body = {"model": "tried", "artifact_id": artifact, "adapter_of": "narrow"}
    error = account.post("/v1/deployments", json=body).json()["error"]
    assert error["param"] == "artifact_id"
    assert "DoRA" in error["message"] and "32 outputs" in error["message"]
    account.delete(f"/v1/deployments/{deployed['id']}").raise_for_status()


def scores(client: httpx.Client, model: str, texts: list[str]) -> list[Any]:
    body = {"model": model, "inputs": texts, "aggregation_strategy": "none"}
    answer = client.post("/v1/classifications/token", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


class TestEncoders:
    @pytest.mark.parametrize(
        "options", [{"bias": "all"}, {"lora_bias": True}, {"use_dora": True, "bias": "lora_only"}]
    )
    def test_with_biases(
        self, account: httpx.Client, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        """The answers equal those of PEFT's merged model, deployed as PEFT saves it."""
        base = tiny_bert(tmp_path / "base")
        config = {"target_modules": ["query", "dense"], "r": 2, **options}
        adapted = made(tmp_path / "adapter", base, **config)
        whole = adapted.merge_and_unload()
        AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "whole")
        whole.save_pretrained(tmp_path / "whole")
        ids = [
            deploy(account, tmp_path / "whole", "whole")["id"],
            deploy(account, base, "tagger")["id"],
            deploy(account, tmp_path / "adapter", "adapted", adapter_of="tagger")["id"],
        ]
        texts = ["clara lives in berlin", "the tower is in paris"]
        close(scores(account, "adapted", texts), scores(account, "whole", texts), 1e-5)
        assert scores(account, "tagger", texts) != scores(account, "adapted", texts)
        for deployment_id in reversed(ids):
            account.delete(f"/v1/deployments/{deployment_id}").raise_for_status()

    def test_of_a_base_in_int8(self, account: httpx.Client, tmp_path: Path) -> None:
        """The adapter is merged before rounding to int8. The answers equal those of PEFT's merged
        model after the same rounding.
        """
        options = {"target_modules": ["query", "value"], "r": 2, "lora_alpha": 1}
        whole = made(tmp_path / "adapter", NER, **options).merge_and_unload()
        library.AutoTokenizer.from_pretrained(NER).save_pretrained(tmp_path / "whole")
        whole.save_pretrained(tmp_path / "whole")
        rounded = {"engine": "openvino", "dtype": "int8"}
        base = deploy(account, NER, "ner", **rounded)
        ids = {
            "whole": deploy(account, tmp_path / "whole", "whole", **rounded)["id"],
            "adapted": deploy(account, tmp_path / "adapter", "adapted", adapter_of="ner")["id"],
        }
        about = deployment(account, ids["adapted"])
        assert about["adapter"]["sharing"] == "merged"
        assert "int8" in about["adapter"]["reason"]
        assert (about["engine"], about["dtype"]) == ("openvino", "int8")
        texts = ["Anna Kowalski visited Paris.", "Siemens in Munich."]
        # Torch answers for both until they are converted.
        answers = {name: scores(account, name, texts) for name in ids}
        close(answers["adapted"], answers["whole"], 1e-5)
        for name, identifier in ids.items():
            wait_rounded(account, identifier)
            answers[name] = scores(account, name, texts)
        close(answers["adapted"], answers["whole"], 1e-3)
        for deployment_id in (ids["adapted"], ids["whole"], base["id"]):
            account.delete(f"/v1/deployments/{deployment_id}").raise_for_status()


def test_of_a_pipeline_whose_replicas_take_none(account: httpx.Client, tmp_path: Path) -> None:
    """An adapter of a pipeline without shared replicas is merged. A translator's encoder and
    decoder have modules with the same name endings.
    """
    options = {"target_modules": ["q", "v"], "loader": "AutoModelForSeq2SeqLM", "r": 2}
    whole = made(tmp_path / "adapter", TRANSLATOR, **options).merge_and_unload()
    library.AutoTokenizer.from_pretrained(TRANSLATOR).save_pretrained(tmp_path / "whole")
    whole.save_pretrained(tmp_path / "whole")
    models = {"whole": tmp_path / "whole", "translator": TRANSLATOR}
    ids: list[str] = []
    for model, folder in models.items():
        artifact = push(account, folder, pipeline="translation")["id"]
        body = {"model": model, "artifact_id": artifact}
        ids.append(account.post("/v1/deployments", json=body).raise_for_status().json()["id"])
    ids.append(deploy(account, tmp_path / "adapter", "adapted", adapter_of="translator")["id"])
    assert "translation" in deployment(account, ids[2])["adapter"]["reason"]

    def translated(model: str) -> Any:
        body = {"model": model, "inputs": ["the house is small", "good morning"]}
        return account.post("/v1/translations", json=body).raise_for_status().json()

    assert translated("adapted") == translated("whole") != translated("translator")
    for deployment_id in reversed(ids):
        account.delete(f"/v1/deployments/{deployment_id}").raise_for_status()


def wait_rounded(client: httpx.Client, identifier: str) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        workers = deployment(client, identifier)["workers"]
        if [worker["engine"] for worker in workers] == ["openvino"]:
            return
        time.sleep(0.2)
    raise AssertionError(deployment(client, identifier))


def close(found: list[Any], wanted: list[Any], tolerance: float) -> None:
    """Asserts equal labels at equal places and scores within a tolerance."""
    assert len(found) == len(wanted)
    for result, other in zip(found, wanted, strict=True):
        assert strip(result) == strip(other)
        assert numbers(result) == pytest.approx(numbers(other), abs=tolerance)


def strip(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: strip(item) for key, item in value.items() if key != "score"}
    return [strip(item) for item in value] if isinstance(value, list) else value


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        scored = [value["score"]] if "score" in value else []
        return scored + [number for part in value.values() for number in numbers(part)]
    return [number for part in value for number in numbers(part)] if isinstance(value, list) else []
