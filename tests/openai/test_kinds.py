"""Language models of unusual kinds answer through the server, all at once, as `generate` does."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.models.chat.answers.detokenizing import Detokenizer
from stoker.models.chat.prompts.prompts import Prompts
from tests.llm import test_positions as positions
from tests.llm.support import GREEDY, VOCABULARY, generated, tokenizer
from tests.llm.test_families import prompt
from tests.support import causal
from tests.support.deploying import deploy
from tests.support.server import Server

KINDS = ("bloom", "mamba")
LONG = "phi-long"
LENGTHS = (5, 40, 44, 48, 49, 90, 12, 130)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("kinds") as client:
        yield client


@pytest.fixture(scope="module")
def models(client: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made = {kind: causal.model(kind) for kind in KINDS}
    made[LONG] = positions.made(*positions.MODELS["phi 3"])
    for name, model in made.items():
        folder: Path = tmp_path_factory.mktemp(name) / name
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        deploy(client, folder, name, engine="torch", readiness="hot")
    return made


def test_answer_as_transformers_does(
    client: httpx.Client, models: dict[str, Any], tmp_path: Path
) -> None:
    made = tokenizer()
    made.save_pretrained(tmp_path)
    hidden = Prompts(tmp_path, max_length=positions.POSITIONS, vocabulary=VOCABULARY).hidden
    count = GREEDY.max_tokens or 0

    def asked(work: tuple[str, list[int]]) -> str:
        name, tokens = work
        body = {"model": name, "prompt": tokens, "max_tokens": count, "temperature": 0}
        answer = client.post("/v1/completions", json=body | {"ignore_eos": True})
        return answer.raise_for_status().json()["choices"][0]["text"]

    works = [(name, prompt(length)) for length in LENGTHS for name in models]
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(asked, works))
    for (name, tokens), text in zip(works, texts, strict=True):
        reader = Detokenizer(made.backend_tokenizer, hidden)
        model = models[name]
        model.generation_config.eos_token_id = None
        expected = reader.add(generated(model, tokens, count)) + reader.finish()
        assert text == expected, (name, len(tokens))
