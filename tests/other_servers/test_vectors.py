"""`/embed`, `/embed_all`, `/embed_sparse` and `/similarity`, against the libraries themselves."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from tests.other_servers.conftest import (
    CLASSIFIER,
    ENCODER,
    EXCLUDING,
    MASKED,
    PROMPTED,
    PROMPTS,
)
from tests.other_servers.support import ask, close, refused
from tests.support.errors import error_of

TEXTS = ["How do I bake a loaf of bread?", "Hi", "Where do the trains to Berlin leave, über Köln?"]
LONG = " ".join(f"the bread of town number {number} is good" for number in range(60))
LIMIT = 128


@pytest.fixture(scope="module")
def library(folders: dict[str, Path]) -> dict[str, Any]:
    from sentence_transformers import SentenceTransformer

    return {
        name: SentenceTransformer(str(folders[name]), device="cpu")
        for name in (ENCODER, PROMPTED, EXCLUDING)
    }


@pytest.fixture(scope="module")
def tokenizer(folders: dict[str, Path]) -> Any:
    return AutoTokenizer.from_pretrained(str(folders[ENCODER]))


def hidden_states(folder: Path, ids: list[int]) -> Any:
    model: Any = AutoModel.from_pretrained(str(folder), dtype=torch.float32)
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()


class TestEmbed:
    def test_texts(self, client: httpx.Client, library: dict[str, Any]) -> None:
        vectors = library[ENCODER].encode(TEXTS)
        close(ask(client, "/embed", ENCODER, inputs=TEXTS), vectors)
        # A single text is a list of one, too.
        close(ask(client, "/embed", ENCODER, inputs=TEXTS[0]), vectors[:1])

    def test_normalize(
        self, client: httpx.Client, folders: dict[str, Path], tokenizer: Any
    ) -> None:
        found = np.array(ask(client, "/embed", ENCODER, inputs=TEXTS, normalize=False))
        means = [
            hidden_states(folders[ENCODER], tokenizer(text)["input_ids"]).mean(0) for text in TEXTS
        ]
        close(found, means)
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() > 0.1
        scaled = found / np.linalg.norm(found, axis=1, keepdims=True)
        close(ask(client, "/embed", ENCODER, inputs=TEXTS, normalize=True), scaled)

    def test_token_ids(
        self, client: httpx.Client, folders: dict[str, Path], tokenizer: Any
    ) -> None:
        """Token ids are used unchanged, alone and among texts."""
        ids = tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]
        (found,) = ask(client, "/embed", ENCODER, inputs=ids, normalize=False)
        close(found, hidden_states(folders[ENCODER], ids).mean(0))
        framed = tokenizer(TEXTS[1])["input_ids"]
        mixed = ask(client, "/embed", ENCODER, inputs=[TEXTS[1], framed])
        close(mixed[0], mixed[1])

    def test_prompt_name(self, client: httpx.Client, library: dict[str, Any]) -> None:
        for name in (PROMPTED, EXCLUDING):
            encoder = library[name]
            for prompt in PROMPTS:
                found = ask(client, "/embed", name, inputs=TEXTS, prompt_name=prompt)
                close(found, encoder.encode(TEXTS, prompt_name=prompt))
            close(ask(client, "/embed", name, inputs=TEXTS), encoder.encode(TEXTS))
        error = refused(client, "/embed", PROMPTED, inputs=TEXTS, prompt_name="other")
        assert error["param"] == "prompt_name" and "'passage'" in error["message"]

    def test_dimensions(self, client: httpx.Client, library: dict[str, Any]) -> None:
        full = library[PROMPTED].encode(TEXTS)
        short = full[:, :8] / np.linalg.norm(full[:, :8], axis=1, keepdims=True)
        close(ask(client, "/embed", PROMPTED, inputs=TEXTS, dimensions=8), short)
        assert refused(client, "/embed", PROMPTED, inputs=TEXTS, dimensions=9)["param"] == (
            "dimensions"
        )

    @pytest.mark.parametrize("direction", ["Right", "right", "Left", "left"])
    def test_truncation(
        self,
        client: httpx.Client,
        folders: dict[str, Path],
        tokenizer: Any,
        direction: str,
    ) -> None:
        tokens = tokenizer(LONG, add_special_tokens=False, verbose=False)["input_ids"]
        assert len(tokens) > 2 * LIMIT
        room = LIMIT - 2
        kept = tokens[:room] if direction.lower() == "right" else tokens[-room:]
        first, *_, last = tokenizer("a")["input_ids"]
        body = {"truncate": True, "truncation_direction": direction, "normalize": False}
        (found,) = ask(client, "/embed", ENCODER, inputs=LONG, **body)
        close(found, hidden_states(folders[ENCODER], [first, *kept, last]).mean(0))
        cut = tokens[:LIMIT] if direction.lower() == "right" else tokens[-LIMIT:]
        (found,) = ask(client, "/embed", ENCODER, inputs=tokens, **body)
        close(found, hidden_states(folders[ENCODER], cut).mean(0))

    def test_truncation_is_off_by_default(self, client: httpx.Client) -> None:
        for more in ({}, {"truncate": None}, {"truncate": False, "truncation_direction": "Left"}):
            error = refused(client, "/embed", ENCODER, inputs=[TEXTS[0], LONG], **more)
            assert error["param"] == "inputs[1]"
            advice = f"at most {LIMIT}. Shorten it, or send 'truncate': true to cut it."
            assert error["message"].endswith(advice)

    def test_a_side_holds_for_its_own_request(self, client: httpx.Client) -> None:
        body = {"inputs": LONG, "truncate": True}
        default = ask(client, "/embed", ENCODER, **body)
        left = ask(client, "/embed", ENCODER, truncation_direction="Left", **body)
        assert np.abs(np.subtract(default, left)).max() > 0.01
        close(ask(client, "/embed", ENCODER, **body), default)
        close(ask(client, "/embed", ENCODER, truncation_direction="Right", **body), default)

    def test_a_prompt_outside_the_vector_is_not_cut(self, client: httpx.Client) -> None:
        body = {"inputs": TEXTS, "truncate": True, "truncation_direction": "Left"}
        ask(client, "/embed", PROMPTED, **body)
        assert refused(client, "/embed", EXCLUDING, **body)["param"] == "truncation_direction"

    @pytest.mark.parametrize(
        ("given", "param"),
        [
            ({}, "inputs"),
            ({"inputs": None}, "inputs"),
            ({"inputs": ""}, "inputs"),
            ({"inputs": []}, "inputs"),
            ({"inputs": ["a", ""]}, "inputs"),
            ({"inputs": ["a", 1]}, "inputs"),
            ({"inputs": [1, "a"]}, "inputs"),
            ({"inputs": [True]}, "inputs"),
            ({"inputs": [[-1]]}, "inputs"),
            ({"inputs": [[]]}, "inputs"),
            ({"inputs": {"text": "a"}}, "inputs"),
            ({"inputs": [[1, 2], [1900]]}, "inputs[1]"),
            ({"inputs": ["a"] * 257}, "inputs"),
            ({"inputs": [[1]], "prompt_name": "query"}, "prompt_name"),
            ({"inputs": "a", "normalize": 1}, "normalize"),
            ({"inputs": "a", "normalize": None}, "normalize"),
            ({"inputs": "a", "truncate": "yes"}, "truncate"),
            ({"inputs": "a", "truncation_direction": "Both"}, "truncation_direction"),
            ({"inputs": "a", "dimensions": 0}, "dimensions"),
            ({"inputs": "a", "normalise": True}, "normalise"),
        ],
    )
    def test_invalid(self, client: httpx.Client, given: dict[str, Any], param: str) -> None:
        error = refused(client, "/embed", ENCODER, **given)
        assert (error["error_type"], error["code"]) == ("Validation", "invalid_request")
        assert error["param"] == param, error
        assert param.partition("[")[0] in error["message"] or "Token 1900" in error["message"]


class TestEmbedAll:
    def test_every_token(
        self, client: httpx.Client, folders: dict[str, Path], tokenizer: Any
    ) -> None:
        found = ask(client, "/embed_all", ENCODER, inputs=TEXTS)
        for vectors, text in zip(found, TEXTS, strict=True):
            ids = tokenizer(text)["input_ids"]
            assert len(vectors) == len(ids)
            close(vectors, hidden_states(folders[ENCODER], ids))
        (single,) = ask(client, "/embed_all", ENCODER, inputs=TEXTS[1])
        close(single, found[1])

    def test_prompt(self, client: httpx.Client, folders: dict[str, Path], tokenizer: Any) -> None:
        (found,) = ask(client, "/embed_all", EXCLUDING, inputs=TEXTS[0], prompt_name="passage")
        ids = tokenizer(PROMPTS["passage"] + TEXTS[0])["input_ids"]
        close(found, hidden_states(folders[EXCLUDING], ids))

    def test_token_ids_and_truncation(self, client: httpx.Client, folders: dict[str, Path]) -> None:
        ids = [number % 1000 + 100 for number in range(200)]
        assert refused(client, "/embed_all", ENCODER, inputs=[ids])["param"] == "inputs[0]"
        (found,) = ask(client, "/embed_all", ENCODER, inputs=[ids], truncate=True)
        close(found, hidden_states(folders[ENCODER], ids[:LIMIT]))


class TestEmbedSparse:
    def test_as_splade(self, client: httpx.Client, folders: dict[str, Path]) -> None:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(folders[MASKED]))
        model: Any = AutoModelForMaskedLM.from_pretrained(str(folders[MASKED]), dtype=torch.float32)
        texts = ["The capital of France is Paris.", "Rain"]
        found = ask(client, "/embed_sparse", MASKED, inputs=texts)
        for values, text in zip(found, texts, strict=True):
            with torch.no_grad():
                logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
            weights = logits.relu().log1p().amax(0)
            wanted = weights.nonzero()[:, 0].tolist()
            assert [value["index"] for value in values] == wanted
            close([value["value"] for value in values], weights[wanted])
        (single,) = ask(client, "/embed_sparse", MASKED, inputs=texts[1])
        assert [value["index"] for value in single] == [value["index"] for value in found[1]]

    def test_models_of_other_kinds(self, client: httpx.Client) -> None:
        error = refused(client, "/embed_sparse", ENCODER, inputs="a")
        assert error["message"] == "This model makes one dense vector per text: use /embed."
        for path in ("/embed", "/embed_all", "/embed_sparse"):
            error = refused(client, path, CLASSIFIER, inputs="a")
            assert error["code"] == "endpoint_not_supported"
            # The names of these endpoints do not lengthen the list.
            assert error["message"].endswith(
                "served by /v1/classifications/text, /v1/moderations, /v1/rerank."
            )


class TestSimilarity:
    def test_as_sentence_transformers(self, client: httpx.Client, library: dict[str, Any]) -> None:
        for name, prompt in ((ENCODER, None), (PROMPTED, None), (PROMPTED, "passage")):
            encoder = library[name]
            vectors = encoder.encode(TEXTS, prompt_name=prompt)
            wanted = encoder.similarity(vectors[:1], vectors[1:])[0]
            inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
            named = {"prompt_name": prompt} if prompt else {}
            close(ask(client, "/similarity", name, inputs=inputs, parameters=named), wanted)
            close(ask(client, "/similarity", name, inputs=inputs, **named), wanted)

    def test_truncation(self, client: httpx.Client) -> None:
        inputs = {"source_sentence": LONG, "sentences": [TEXTS[0], LONG]}
        assert refused(client, "/similarity", ENCODER, inputs=inputs)["param"] == (
            "inputs.source_sentence"
        )
        ends = [
            ask(
                client,
                "/similarity",
                ENCODER,
                inputs=inputs,
                parameters={"truncate": True, "truncation_direction": side},
            )
            for side in ("Left", "Right")
        ]
        assert ends[0][0] != ends[1][0]
        close([end[1] for end in ends], [1.0, 1.0])

    @pytest.mark.parametrize(
        ("given", "param"),
        [
            ({}, "inputs"),
            ({"inputs": "a"}, "inputs"),
            ({"inputs": {"sentences": ["a"]}}, "inputs.source_sentence"),
            ({"inputs": {"source_sentence": "a", "sentences": []}}, "inputs.sentences"),
            ({"inputs": {"source_sentence": "a", "sentences": ["b", ""]}}, "inputs.sentences[1]"),
            ({"inputs": {"source_sentence": "a", "sentences": [LONG]}}, "inputs.sentences[0]"),
        ],
    )
    def test_invalid(self, client: httpx.Client, given: dict[str, Any], param: str) -> None:
        assert refused(client, "/similarity", ENCODER, **given)["param"] == param


def test_a_text_beyond_the_server_limit(client: httpx.Client) -> None:
    long = "a" * 1_000_001
    sentences = {"source_sentence": "a", "sentences": ["b", long]}
    for path, inputs, param in (
        ("/embed", ["a", long], "inputs[1]"),
        ("/similarity", sentences, "inputs.sentences[1]"),
    ):
        response = client.post(path, json={"model": ENCODER, "inputs": inputs})
        assert error_of(response)["param"] == param
        assert "the limit is 1000000" in error_of(response)["message"]
