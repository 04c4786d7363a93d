"""Adapters over HTTP: each has an artifact and a deployment and uses the replicas of its base."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer

from stoker.models.llm.engines.torch import load
from tests.adapters.support import made
from tests.llm.support import generated, tiny_llama
from tests.support.deploying import deploy, deployment, push
from tests.support.models import tiny_bert
from tests.support.server import Server

TEXT = "one two three"
TOKENS = 6
VARIANTS: dict[str, dict[str, Any]] = {
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "all": {"target_modules": "all-linear", "r": 2},
}


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("adapters") as client:
        yield client


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "base")


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: (
            folder / name,
            made(
                folder / name,
                base,
                loader="AutoModelForCausalLM",
                seed=seed,
                task_type="CAUSAL_LM",
                **options,
            ),
        )
        for seed, (name, options) in enumerate(VARIANTS.items())
    }


@pytest.fixture(scope="module")
def served(
    account: httpx.Client, base: Path, adapters: dict[str, tuple[Path, Any]]
) -> dict[str, Any]:
    """Deploys the base and each adapter."""
    deployments = {"": deploy(account, base, "base")}
    for name, (folder, _) in adapters.items():
        deployments[name] = deploy(account, folder, name, adapter_of="base")
    return deployments


def completed(client: httpx.Client, model: str) -> dict[str, Any]:
    body = {"model": model, "prompt": TEXT, "max_tokens": TOKENS, "temperature": 0}
    return client.post("/v1/completions", json=body).raise_for_status().json()


def test_each_answers_in_its_own_way(
    account: httpx.Client,
    base: Path,
    adapters: dict[str, tuple[Path, Any]],
    served: dict[str, Any],
) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    prompt = tokenizer(TEXT)["input_ids"]
    models = {"": load(base, torch.float32, torch.device("cpu"))}
    models |= {name: model for name, (_, model) in adapters.items()}
    expected = {
        name: tokenizer.decode(generated(model, prompt, TOKENS), skip_special_tokens=True)
        for name, model in models.items()
    }
    assert len(set(expected.values())) == len(expected)
    names = [*models] * 4
    with ThreadPoolExecutor(len(names)) as threads:
        answers = threads.map(lambda name: completed(account, name or "base"), names)
        for name, answer in zip(names, answers, strict=True):
            assert answer["choices"][0]["text"] == expected[name]
            assert answer["model"] == (name or "base")
    workers = {name: deployment(account, item["id"])["workers"] for name, item in served.items()}
    (worker,) = workers[""]
    assert all(
        [item["pid"] for item in adapter_workers] == [worker["pid"]]
        for adapter_workers in workers.values()
    )


def test_what_it_says_of_itself(account: httpx.Client, served: dict[str, Any]) -> None:
    shown = deployment(account, served["attention"]["id"])
    assert shown["adapter_of"] == "base"
    assert shown["pipeline"] == "text-generation"
    artifact = account.get(f"/v1/model-artifacts/{shown['artifact_id']}").json()
    assert artifact["pipeline"] == "adapter"
    about = artifact["inspection"]["adapter"]
    assert about["rank"] == 4
    assert about["modules"] == ["q_proj", "v_proj"]
    assert shown["memory"] == {"bytes": artifact["inspection"]["weight_bytes"], "is_measured": True}
    assert deployment(account, served[""]["id"])["adapter_of"] is None
    listed = [item["id"] for item in account.get("/v1/models").json()["data"]]
    assert {"base", "attention", "all"} <= {*listed}


def test_calls_are_counted_with_it(
    server: Server, account: httpx.Client, served: dict[str, Any]
) -> None:
    def requests() -> dict[str, float]:
        with server.client(server.operator_key) as operator:
            lines = operator.get("/metrics").text.splitlines()
        counts = dict.fromkeys(("base", "attention"), 0.0)
        for line in lines:
            if line.startswith("stoker_requests_total{"):
                for model in counts:
                    counts[model] += f'model="{model}"' in line and float(line.split()[-1])
        return counts

    completed(account, "base")
    before = requests()
    completed(account, "attention")
    assert requests() == {"base": before["base"], "attention": before["attention"] + 1}


def test_stopped_by_itself(account: httpx.Client, served: dict[str, Any]) -> None:
    path = f"/v1/deployments/{served['all']['id']}"
    assert account.post(f"{path}/stop").json()["status"] == "stopped"
    with pytest.raises(httpx.HTTPStatusError) as caught:
        completed(account, "all")
    assert caught.value.response.json()["error"]["code"] == "deployment_stopped"
    completed(account, "base")
    completed(account, "attention")
    account.post(f"{path}/start").raise_for_status()
    completed(account, "all")


def test_a_base_stays_while_it_has_adapters(account: httpx.Client, served: dict[str, Any]) -> None:
    path = f"/v1/deployments/{served['']['id']}"
    refused = account.delete(path)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "has_adapters"
    refused = account.patch(path, json={"dtype": "int8"})
    assert refused.status_code == 400
    assert "adapters" in refused.json()["error"]["message"]
    refused = account.patch(f"/v1/deployments/{served['all']['id']}", json={"max_queue": 3})
    assert refused.json()["error"]["code"] == "is_adapter"


class TestRefused:
    @pytest.fixture(scope="class")
    def artifact(self, account: httpx.Client, adapters: dict[str, tuple[Path, Any]]) -> str:
        return push(account, adapters["attention"][0])["id"]

    def tried(self, account: httpx.Client, **body: Any) -> dict[str, Any]:
        answer = account.post("/v1/deployments", json={"model": "tried", **body})
        assert 400 <= answer.status_code < 500, answer.text
        return answer.json()["error"]

    def test_without_its_base(self, account: httpx.Client, artifact: str) -> None:
        assert self.tried(account, artifact_id=artifact)["param"] == "adapter_of"

    def test_of_a_base_that_is_none(
        self, account: httpx.Client, served: dict[str, Any], artifact: str, tmp_path: Path
    ) -> None:
        for base in ("nobody", "attention"):
            error = self.tried(account, artifact_id=artifact, adapter_of=base)
            assert error["param"] == "adapter_of"
        error = self.tried(account, artifact_id=served[""]["artifact_id"], adapter_of="base")
        assert "not an adapter" in error["message"]

    def test_with_what_is_the_bases(
        self, account: httpx.Client, served: dict[str, Any], artifact: str
    ) -> None:
        error = self.tried(account, artifact_id=artifact, adapter_of="base", readiness="hot")
        assert error["param"] == "readiness"

    def test_of_another_base(
        self, account: httpx.Client, served: dict[str, Any], tmp_path: Path
    ) -> None:
        bert = tiny_bert(tmp_path / "bert", "Model")
        made(tmp_path / "names", bert, loader="AutoModel", target_modules=["query"])
        wide = tiny_llama(tmp_path / "wide", head_size=8)
        made(tmp_path / "sizes", wide, loader="AutoModelForCausalLM", target_modules=["q_proj"])
        for name, words in (("names", "query"), ("sizes", "32 inputs")):
            artifact = push(account, tmp_path / name)["id"]
            error = self.tried(account, artifact_id=artifact, adapter_of="base")
            assert "another base" in error["message"]
            assert words in error["message"]
            assert error["param"] == "artifact_id"


def test_follows_its_base(account: httpx.Client, served: dict[str, Any]) -> None:
    before = completed(account, "attention")["choices"]
    changes = {"replicas": {"max": 2}, "dtype": "float32"}
    path = f"/v1/deployments/{served['']['id']}"
    account.patch(path, json=changes).raise_for_status()
    deadline = time.monotonic() + 60
    while deployment(account, served[""]["id"])["dtype"] != "float32":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    adapter = deployment(account, served["attention"]["id"])
    assert (adapter["replicas"]["max"], adapter["dtype"]) == (2, "float32")
    assert completed(account, "attention")["choices"] == before


class TestVersionsOfTheBase:
    """Adapters are compared with each new version of their base before it becomes live."""

    def begun(self, account: httpx.Client, served: dict[str, Any], folder: Path) -> dict[str, Any]:
        path = f"/v1/deployments/{served['']['id']}/versions"
        body = {"artifact_id": push(account, folder)["id"]}
        return account.post(path, json=body).raise_for_status().json()

    def ended(
        self, account: httpx.Client, served: dict[str, Any], version: dict[str, Any]
    ) -> dict[str, Any]:
        path = f"/v1/deployments/{served['']['id']}/versions/{version['id']}"
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            current = account.get(path).raise_for_status().json()
            if current["status"] in ("live", "failed"):
                return current
            time.sleep(0.05)
        raise AssertionError(current)

    def test_of_other_sizes(
        self, account: httpx.Client, served: dict[str, Any], tmp_path: Path
    ) -> None:
        before = completed(account, "attention")["choices"]
        wide = tiny_llama(tmp_path / "wide", head_size=8)
        version = self.ended(account, served, self.begun(account, served, wide))
        assert (version["status"], version["reason"]) == ("failed", "adapter_misfit")
        assert "'attention'" in version["message"] or "'all'" in version["message"]
        assert "64 inputs" in version["message"]
        assert completed(account, "attention")["choices"] == before

    def test_of_other_weights(
        self,
        account: httpx.Client,
        base: Path,
        adapters: dict[str, tuple[Path, Any]],
        served: dict[str, Any],
        tmp_path: Path,
    ) -> None:
        """A version with other weights becomes live. The adapters stay and are added to the new
        weights.
        """
        import peft

        first = served[""]["version_id"]
        before = completed(account, "attention")["choices"]
        changed = load(base, torch.float32, torch.device("cpu"))
        with torch.no_grad():
            changed.model.layers[0].mlp.down_proj.weight *= -1
        place = tmp_path / "changed"
        AutoTokenizer.from_pretrained(base).save_pretrained(place)
        changed.save_pretrained(place)
        version = self.ended(account, served, self.begun(account, served, place))
        assert version["status"] == "live"
        library: Any = peft
        adapted = library.PeftModel.from_pretrained(changed, adapters["attention"][0]).eval()
        tokenizer: Any = AutoTokenizer.from_pretrained(base)
        tokens = generated(adapted, tokenizer(TEXT)["input_ids"], TOKENS)
        choices = completed(account, "attention")["choices"]
        assert choices[0]["text"] == tokenizer.decode(tokens, skip_special_tokens=True)
        assert choices != before
        path = f"/v1/deployments/{served['']['id']}"
        account.post(f"{path}/versions/{first}/promote").raise_for_status()
        assert self.ended(account, served, {"id": first})["status"] == "live"
        assert completed(account, "attention")["choices"] == before


def test_comes_and_goes_while_others_are_served(
    account: httpx.Client, adapters: dict[str, tuple[Path, Any]], served: dict[str, Any]
) -> None:
    completed(account, "base")
    (worker,) = deployment(account, served[""]["id"])["workers"]
    late = deploy(account, adapters["attention"][0], "late", adapter_of="base")
    assert completed(account, "late")["choices"] == completed(account, "attention")["choices"]
    assert deployment(account, served[""]["id"])["workers"][0]["pid"] == worker["pid"]
    account.delete(f"/v1/deployments/{late['id']}").raise_for_status()
    with pytest.raises(httpx.HTTPStatusError) as caught:
        completed(account, "late")
    assert caught.value.response.status_code == 404
    completed(account, "attention")


def test_after_a_restart(server: Server, account: httpx.Client, served: dict[str, Any]) -> None:
    before = {name: completed(account, name)["choices"] for name in ("base", "attention", "all")}
    server.kill()
    server.restart()
    server.wait_ready()
    after = {name: completed(account, name)["choices"] for name in before}
    assert after == before
