"""Engines and a task of another package: a real server finds, describes and serves them.

They exist only in tests/support/plugin, and no other code knows them.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from stoker import plugin_api
from stoker.base import plugins
from stoker.base.plugins import PluginError
from stoker.models.engines.record import EngineRecord
from tests.artifacts.support import eventually
from tests.cli.support import Cli
from tests.deployments.support import DEPLOYMENTS, check_error
from tests.support.compare import equal
from tests.support.deploying import push, wait_for
from tests.support.server import WITHOUT_MODELS, Server, running

PLUGIN = Path(__file__).parent / "support" / "plugin"
MODELS = Path(stoker.demo.__file__).parent / "models"
SENTIMENT, ENCODER = MODELS / "tiny-sentiment", MODELS / "tiny-encoder"
CHAT = MODELS / "tiny-chat"
CLASSIFY, MEASURE = "/v1/classifications/text", "/v1/toys/sentence-length"
TEXTS = ["the room was clean and the staff were friendly", "never again", "a"]
SCALE = 3.0
TOYS = ["bag", "successor"]
SEEN = os.pathsep.join([str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])])
"""Search path for packages of a server and its engine host."""


def test_the_packages_import_the_plugin_api_alone() -> None:
    for path in PLUGIN.glob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        modules |= {
            name.name for node in nodes if isinstance(node, ast.Import) for name in node.names
        }
        ours = {name for name in modules if name and name.partition(".")[0] == "stoker"}
        assert ours == {"stoker.plugin_api"}, path


def test_the_plugin_api_has_what_it_says() -> None:
    assert all(getattr(plugin_api, name) for name in plugin_api.__all__)
    with pytest.raises(AttributeError, match="it has MANY, ONE"):
        _ = plugin_api.nothing  # type: ignore[attr-defined]


def test_records_load_nothing_heavy() -> None:
    program = (
        "import sys, toys; print(sorted({'torch', 'numpy', 'transformers'} & sys.modules.keys()))"
    )
    environment = {**os.environ, "PYTHONPATH": SEEN}
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


class World:
    def __init__(self, server: Server, client: httpx.Client) -> None:
        self.server = server
        self.client = client
        self.sentiment = push(client, SENTIMENT)["id"]
        self.encoder = push(client, ENCODER, pipeline="sentence-length")["id"]

    def deploy(self, model: str, artifact: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "artifact_id": artifact, **fields}
        return self.client.post(DEPLOYMENTS, json=body)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plugins") / "data"


@pytest.fixture(scope="module")
def world(data_dir: Path) -> Iterator[World]:
    with running(data_dir, PYTHONPATH=SEEN) as server:
        client = server.account()
        made = World(server, client)
        fields = {"engine": "bag", "config": {"bag_scale": SCALE}}
        made.deploy("bag", made.sentiment, **fields).raise_for_status()
        made.deploy("measure", made.encoder).raise_for_status()
        made.deploy("count", push(client, CHAT)["id"], engine="successor").raise_for_status()
        server.wait_ready()
        yield made


@pytest.fixture(scope="module")
def left(world: World, data_dir: Path) -> Iterator[World]:
    """Another server on the same data, without the package."""
    world.server.stop()
    with running(data_dir, **WITHOUT_MODELS) as server:
        key = world.client.headers["authorization"].removeprefix("Bearer ")
        world.client = server.client(key)
        yield world


@pytest.fixture(scope="module")
def document(world: World) -> dict[str, Any]:
    return world.client.get("/openapi.json").raise_for_status().json()


def known_labels(text: str) -> list[dict[str, Any]]:
    """Returns the result of the bag of words, computed by torch."""
    import torch
    import transformers

    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(SENTIMENT)
    ids = transformers.AutoTokenizer.from_pretrained(SENTIMENT)(text, return_tensors="pt")
    words = model.bert.embeddings.word_embeddings.weight
    with torch.no_grad():
        mean = torch.nn.functional.embedding_bag(ids["input_ids"], words, mode="mean")
        scores = (SCALE * model.classifier(mean)).softmax(-1)[0]
    labels = model.config.id2label
    scored = [{"label": labels[at], "score": float(score)} for at, score in enumerate(scores)]
    return sorted(scored, key=lambda label: -label["score"])


def known_length(text: str) -> dict[str, float]:
    import torch
    import transformers

    model: Any = transformers.AutoModel.from_pretrained(ENCODER)
    tokens = transformers.AutoTokenizer.from_pretrained(ENCODER)(text, return_tensors="pt")
    with torch.no_grad():
        return {"length": float(model(**tokens).last_hidden_state[0, 0].norm())}


def engines(client: httpx.Client, deployment_id: str) -> list[str]:
    """Returns the engines of a deployment's workers. Each worker reports its engine with its first
    heartbeat.
    """

    def told() -> list[str]:
        workers = wait_for(client, deployment_id, "ready")["workers"]
        return [worker["engine"] for worker in workers]

    assert eventually(lambda: all(told()))
    return told()


class TestEngine:
    def test_its_answers(self, world: World) -> None:
        body = {"model": "bag", "inputs": TEXTS}
        answers = world.client.post(CLASSIFY, json=body).raise_for_status().json()
        for text, answer in zip(TEXTS, answers, strict=True):
            equal(answer, known_labels(text))
        alone = world.client.post(CLASSIFY, json={"model": "bag", "inputs": TEXTS[0]}).json()
        equal(alone, answers[0])

    def test_a_worker_names_it(self, world: World) -> None:
        world.client.post(CLASSIFY, json={"model": "bag", "inputs": "a"}).raise_for_status()
        data = world.client.get(DEPLOYMENTS).json()["data"]
        (deployment,) = (row for row in data if row["model"] == "bag")
        assert engines(world.client, deployment["id"]) == ["bag"]
        assert deployment["config"]["bag_scale"] == SCALE

    def test_the_automatic_choice_is_ours(self, world: World) -> None:
        made = world.deploy("auto", world.sentiment).raise_for_status().json()
        world.client.post(CLASSIFY, json={"model": "auto", "inputs": "a"}).raise_for_status()
        assert engines(world.client, made["id"]) == ["torch"]

    def test_the_document_has_it(self, document: dict[str, Any]) -> None:
        schemas = document["components"]["schemas"]
        engine = schemas["DeploymentCreate"]["properties"]["engine"]
        assert engine["enum"] == ["auto", "openvino", "torch", "vllm", "diffusers", *TOYS]
        assert engine["description"].endswith("`bag`: a bag of words. `successor`: it counts.")
        assert set(schemas["Config"]["properties"]) == {
            *("weight_format", "speculation", "bag_scale"),
            *("devices", "quantization", "kv_cache_dtype"),
        }

    @pytest.mark.parametrize(
        ("fields", "param", "words"),
        [
            ({"device": "cuda"}, "engine", "'bag' runs on the CPU, in float32: leave out"),
            ({"dtype": "float16"}, "engine", "or choose 'torch'."),
            ({"config": {"bag_scale": 0}}, "config.bag_scale", "greater than 0"),
            ({"config": {"bag_scale": True}}, "config.bag_scale", "must be a number"),
            ({"config": {"bag_scales": 1}}, "config.bag_scales", ""),
            (
                {"config": {"weight_format": "int8"}},
                "config.weight_format",
                "are converted",
            ),
        ],
    )
    def test_what_it_does_not_take(
        self, world: World, fields: dict[str, Any], param: str, words: str
    ) -> None:
        answer = world.deploy("no", world.sentiment, engine="bag", **fields)
        error = check_error(answer, 400, "InvalidRequestError", "invalid_request", param)
        assert words in error["message"]

    @pytest.mark.parametrize("engine", ["auto", "torch"])
    def test_its_option_is_no_other_engines(self, world: World, engine: str) -> None:
        fields = {"engine": engine, "config": {"bag_scale": 2}}
        answer = world.deploy("no", world.sentiment, **fields)
        error = check_error(
            answer, 400, "InvalidRequestError", "invalid_request", "config.bag_scale"
        )
        assert error["message"] == (
            "'bag_scale' is for classification on Bag: leave it out, or choose the engine 'bag' "
            "and no 'device'."
        )

    def test_pipelines_that_it_does_not_serve(self, world: World) -> None:
        answer = world.deploy("no", world.encoder, engine="bag")
        error = check_error(answer, 400, "InvalidRequestError", "invalid_request", "engine")
        assert "which runs on openvino and torch" in error["message"]

    def test_the_doctor_looks_at_it(self) -> None:
        import numpy

        cli = Cli("http://127.0.0.1:9", settings={"PYTHONPATH": SEEN})
        process = cli.popen("doctor", "--json")
        output, _ = process.communicate(timeout=120)
        checks = {check["name"]: check for check in json.loads(output)["checks"]}
        assert (checks["Bag"]["status"], checks["Bag"]["found"]) == ("ok", numpy.__version__)


class TestLanguageEngine:
    def test_its_answers(self, world: World) -> None:
        import transformers

        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(CHAT)
        for text in TEXTS:
            last = tokenizer(text)["input_ids"][-1]
            body = {"model": "count", "prompt": text, "max_tokens": 4, "temperature": 0}
            answer = world.client.post("/v1/completions", json=body).raise_for_status().json()
            (choice,) = answer["choices"]
            followers = [last + 1, last + 2, last + 3, last + 4]
            assert choice["text"] == tokenizer.decode(followers), text
            assert answer["usage"]["completion_tokens"] == len(followers)

    def test_pipelines_that_it_does_not_serve(self, world: World) -> None:
        answer = world.deploy("no", world.sentiment, engine="successor")
        error = check_error(answer, 400, "InvalidRequestError", "invalid_request", "engine")
        assert "which runs on openvino and torch and bag" in error["message"]


class TestTask:
    def test_its_answers(self, world: World) -> None:
        body = {"model": "measure", "inputs": TEXTS}
        answers = world.client.post(MEASURE, json=body).raise_for_status().json()
        for text, answer in zip(TEXTS, answers, strict=True):
            equal(answer, known_length(text))
        alone = world.client.post(MEASURE, json={"model": "measure", "inputs": TEXTS[1]}).json()
        equal(alone, known_length(TEXTS[1]))

    def test_bad_input(self, world: World) -> None:
        answer = world.client.post(MEASURE, json={"model": "measure", "inputs": 5})
        check_error(answer, 400, "InvalidRequestError", "invalid_request", "inputs")

    def test_only_its_own_deployments_serve_it(self, world: World) -> None:
        answer = world.client.post(CLASSIFY, json={"model": "measure", "inputs": "a"})
        assert answer.status_code == 400
        assert f"sentence-length, served by {MEASURE}" in answer.json()["error"]["message"]

    def test_the_document_has_it(self, document: dict[str, Any]) -> None:
        operation = document["paths"][MEASURE]["post"]
        assert operation["summary"] == "Measure sentences"
        assert operation["requestBody"]["content"]["application/json"]["example"] == {
            "inputs": "Long is the way."
        }
        answer = operation["responses"]["200"]["content"]["application/json"]
        single, many = answer["schema"]["anyOf"]
        assert (single["required"], many["items"]) == (["length"], single)


class TestRemoved:
    """Tests after the package was removed. They come last, because the first server ends."""

    def test_the_document_is_as_it_was(self, left: World) -> None:
        document = left.client.get("/openapi.json").raise_for_status().json()
        assert MEASURE not in document["paths"]
        schemas = document["components"]["schemas"]
        engine = schemas["DeploymentCreate"]["properties"]["engine"]
        assert engine["enum"] == ["auto", "openvino", "torch", "vllm", "diffusers"]
        assert set(schemas["Config"]["properties"]) == {
            *("weight_format", "speculation"),
            *("devices", "quantization", "kv_cache_dtype"),
        }

    def test_calls(self, left: World) -> None:
        assert left.client.post(MEASURE, json={"inputs": "a"}).status_code == 404
        answer = left.client.post(CLASSIFY, json={"model": "bag", "inputs": "a"})
        assert answer.status_code == 503
        assert (
            "This server no longer has an engine 'bag' that serves 'text-classification'."
            in answer.json()["error"]["message"]
        )
        answer = left.client.post(CLASSIFY, json={"model": "measure", "inputs": "a"})
        assert "served by no endpoint of this server" in answer.json()["error"]["message"]

    def test_deployments_that_are_left(self, left: World) -> None:
        deployments = {row["model"]: row for row in left.client.get(DEPLOYMENTS).json()["data"]}
        for model, param in (("bag", "engine"), ("measure", "pipeline")):
            path = f"{DEPLOYMENTS}/{deployments[model]['id']}"
            answer = left.client.patch(path, json={"idle_timeout_s": 5})
            check_error(answer, 400, "InvalidRequestError", "invalid_request", param)
        path = f"{DEPLOYMENTS}/{deployments['bag']['id']}"
        changed = left.client.patch(path, json={"engine": "torch"}).raise_for_status().json()
        assert changed["engine"] == "torch"
        left.client.delete(f"{DEPLOYMENTS}/{deployments['measure']['id']}").raise_for_status()

    def test_new_deployments(self, left: World) -> None:
        answer = left.deploy("no", left.sentiment, engine="bag")
        check_error(answer, 400, "InvalidRequestError", "invalid_request", "engine")
        answer = left.deploy("no", left.encoder)
        error = check_error(answer, 400, "InvalidRequestError", "invalid_request", "pipeline")
        assert error["message"] == "This server no longer serves 'sentence-length'."


def test_a_package_can_be_imported_by_itself() -> None:
    """A package can be imported alone, as its own tests do. Its imports from Stoker must not search
    for the package again during the import.
    """
    for module in ("toys", "toy_engines"):
        environment = {**os.environ, "PYTHONPATH": SEEN}
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True, env=environment)


class TestBadPackages:
    @pytest.fixture
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "broken-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        return folder / "entry_points.txt"

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ("no_such_module:ENGINE", "cannot be loaded: ModuleNotFoundError"),
            ("stoker.base.errors:NO_SUCH", "cannot be loaded: AttributeError"),
            ("stoker.base.config:MIB", "must be of type EngineRecord, not int"),
        ],
    )
    def test_the_error_names_them(self, package: Path, value: str, words: str) -> None:
        package.write_text(f"[stoker.engines]\nbad = {value}\n")
        with pytest.raises(PluginError, match=words) as error:
            plugins.added("stoker.engines", EngineRecord)
        assert f"'bad = {value}' of the package broken" in str(error.value)

    @pytest.mark.parametrize(
        ("group", "value", "words"),
        [
            ("engines", "no_such_module:ENGINE", "the package broken (in 'stoker.engines') cannot"),
            (
                "engines",
                "stoker.models.engines.catalogue:OURS",
                "must be of type EngineRecord, not",
            ),
            ("engines", "toys:BAG", "two engines are called 'bag'"),
            ("tasks", "stoker.models.tasks.fill_mask:TASK", "two tasks are called 'fill-mask'"),
        ],
    )
    def test_nothing_starts_without_a_word(
        self, package: Path, group: str, value: str, words: str
    ) -> None:
        package.write_text(f"[stoker.{group}]\nbad = {value}\n")
        path = os.pathsep.join([str(package.parents[1]), SEEN])
        process = Cli("http://127.0.0.1:9", settings={"PYTHONPATH": path}).popen("serve")
        _, error_output = process.communicate(timeout=60)
        assert process.returncode == 1
        assert words in " ".join(error_output.split())
        assert "Traceback" not in error_output
