"""Tests on the model determine which inputs may share a forward pass: no answer depends on other
inputs.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stoker.models.engines import sharing
from stoker.models.engines.sharing import ModelUnfitError
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample
from stoker.models.tasks.registry import STAGES
from stoker.wire.protocol import Sharing
from tests.support.conversion import conversion_of
from tests.support.deploying import deploy
from tests.support.language import tokenizer
from tests.support.server import Server

PIPELINE = "feature-extraction"
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 160,
}
BIG_BIRD = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}
FAMILIES: dict[str, tuple[str, dict[str, Any], Sharing]] = {
    "bert": ("BertConfig", {}, Sharing.PACKED),
    "electra": ("ElectraConfig", {"embedding_size": 32}, Sharing.PACKED),
    "fnet": ("FNetConfig", {}, Sharing.SAME_LENGTH),
    "nystromformer": (
        "NystromformerConfig",
        {"num_landmarks": 8, "segment_means_seq_len": 8},
        Sharing.SAME_LENGTH,
    ),
    "convbert": ("ConvBertConfig", {"embedding_size": 32}, Sharing.SAME_LENGTH),
    "yoso": ("YosoConfig", {"use_expectation": True}, Sharing.SAME_LENGTH),
    "big_bird": ("BigBirdConfig", BIG_BIRD, Sharing.SAME_LENGTH),
}
TEXTS = [
    "clara",
    "the tower in berlin is 34 metres tall",
    "my name is maria and i live in paris",
    "the tower in london is 56 metres tall",
    "who built this " + "tower where the river is " * 9,
]
"""Texts, some with equal numbers of tokens. BigBird's attention is block-sparse for the longest
one.
"""


def made(folder: Path, config: str, **fields: Any) -> Path:
    """Saves a model with random weights and its tokenizer. transformers computes the reference from
    it.
    """
    words = tokenizer("bert")
    words.save_pretrained(folder)
    transformers.set_seed(1)
    kind: Any = getattr(transformers, config)
    known = kind(vocab_size=len(words), **(SIZES | fields))
    transformers.AutoModel.from_config(known).eval().save_pretrained(folder)
    return folder


def reference(folder: Path, text: str) -> torch.Tensor:
    """Returns the mean of a text's token vectors, computed by a freshly loaded model."""
    model: Any = transformers.AutoModel.from_pretrained(folder).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        return model(**words(text, return_tensors="pt")).last_hidden_state.mean(1)[0]


class Model:
    """Stages and engine of a model, with the sharing that was determined for it."""

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        self.stages = STAGES[PIPELINE](folder)
        self.engine = TorchEngine("cpu", dtype, 1)
        self.stages.attach(self.engine.load(folder, self.stages, lambda *_: None))
        self.stages.sharing = sharing.find(self.engine, self.stages)

    def samples(self) -> list[Sample]:
        return [sample for text in TEXTS for sample in self.stages.preprocess(text, {})]

    def batches(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """Groups samples into the largest allowed batches."""
        groups: dict[Any, list[Sample]] = {}
        for sample in samples:
            groups.setdefault(self.stages.batch_key(sample), []).append(sample)
        return list(groups.values())


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[Path, Sharing]:
    config, fields, expected = FAMILIES[request.param]
    return made(tmp_path_factory.mktemp(request.param), config, **fields), expected


def test_is_found(family: tuple[Path, Sharing]) -> None:
    folder, expected = family
    assert Model(folder).stages.sharing is expected


def test_rounding_is_no_dependence(
    family: tuple[Path, Sharing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding does not count as dependence. In half precision, shapes alone change an answer by an
    unbounded share.
    """
    folder, expected = family
    if folder.name.startswith("fnet"):
        pytest.skip("there is no Fourier transform in bfloat16")
    # Some of the models are so small that nothing would be rounded otherwise.
    monkeypatch.setattr(sharing, "HALF_TOLERANCE", -1.0)
    model = Model(folder, "bfloat16")
    assert model.stages.sharing is expected
    assert model.engine.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.engine.model.parameters()} == {torch.bfloat16}
    monkeypatch.setattr(sharing, "MOST_BYTES", 0)
    assert Model(folder, "bfloat16").stages.sharing is not Sharing.PADDED


def test_no_answer_depends_on_company(family: tuple[Path, Sharing]) -> None:
    folder, expected = family
    model = Model(folder)
    batches = model.batches(model.samples())
    lengths = {item.features["input_ids"].shape[1] for item in model.samples()}
    assert len(batches) == (1 if expected.is_padded else len(lengths)) < len(TEXTS)
    answers = {
        tuple(sample.features["input_ids"][0].tolist()): model.stages.postprocess([output], {})
        for batch in batches
        for sample, output in zip(batch, model.engine.forward(batch), strict=True)
    }
    for text, sample in zip(TEXTS, model.samples(), strict=True):
        actual = answers[tuple(sample.features["input_ids"][0].tolist())]
        known = reference(folder, text)
        assert torch.allclose(torch.as_tensor(actual), known, atol=1e-5), text


def test_nothing_depends_on_what_was_asked_before(tmp_path: Path) -> None:
    """Earlier inputs do not change later answers. BigBird switches to full attention for a short
    text and would never switch back.
    """
    folder = made(tmp_path, "BigBirdConfig", **BIG_BIRD)
    model = Model(folder)
    *_, long = model.samples()
    for sample in (long, model.samples()[0], long):
        (output,) = model.engine.forward([sample])
    actual = torch.as_tensor(model.stages.postprocess([output], {}))
    known = reference(folder, TEXTS[-1])
    assert torch.allclose(actual, known, atol=1e-5)
    full = made(
        tmp_path / "full", "BigBirdConfig", **(BIG_BIRD | {"attention_type": "original_full"})
    )
    assert not torch.allclose(reference(full, TEXTS[-1]), known, atol=1e-4), "it tells nothing"


def test_what_changes_its_neighbours_runs_alone(tmp_path: Path) -> None:
    """A model that mixes the inputs of a batch runs each alone. No known architecture does so; the
    test adds the batch's mean to BERT.
    """
    model = Model(made(tmp_path, "BertConfig"))
    unmixed = model.stages.run

    def mixed(module: Any, call: Any, batch: Any) -> Any:
        outputs = unmixed(module, call, batch)
        hidden = outputs["last_hidden_state"]
        return {"last_hidden_state": hidden + hidden.mean(0, keepdim=True)}

    model.stages.run = mixed
    model.stages.sharing = sharing.find(model.engine, model.stages)
    assert model.stages.sharing is Sharing.ALONE
    assert len(model.batches(model.samples())) == len(TEXTS)


def test_a_converted_one_is_run_in_the_same_way(tmp_path: Path) -> None:
    folder = made(tmp_path / "convbert", "ConvBertConfig", embedding_size=32)
    execution = conversion_of(folder, PIPELINE)
    assert execution.precision == "f32"


def test_what_depends_on_length_is_not_converted(tmp_path: Path) -> None:
    folder = made(tmp_path / "big_bird", "BigBirdConfig", **BIG_BIRD)
    with pytest.raises(AssertionError, match="depends on the length of an input"):
        conversion_of(folder, PIPELINE)


def test_one_that_fails_on_what_is_in_order_is_refused(tmp_path: Path) -> None:
    """A model that fails on valid inputs is rejected. Nyströmformer with fewer landmarks than
    tokens accepts texts of only one length.
    """
    landmarks = {"num_landmarks": 8, "segment_means_seq_len": 64}
    folder = made(tmp_path, "NystromformerConfig", **landmarks)
    with pytest.raises(ModelUnfitError, match=r"fails on an input of the shape input_ids \(1, 5\)"):
        Model(folder)


def test_over_http(server: Server, tmp_path: Path) -> None:
    """Twelve concurrent texts of all lengths get the same answers as alone. The result is cached
    for later replicas.
    """
    folder = made(tmp_path / "fnet", "FNetConfig")
    with server.account("sharing") as client:
        deploy(client, folder, "fnet")
        texts = [f"{text} {letter}" for text in TEXTS[:4] for letter in "abc"]

        def ask(text: str) -> Any:
            body = {"model": "fnet", "inputs": text}
            return client.post("/v1/feature-extraction", json=body).raise_for_status().json()

        ask(texts[0])
        with ThreadPoolExecutor(len(texts)) as pool:
            answers = list(pool.map(ask, texts))
    for text, answer in zip(texts, answers, strict=True):
        assert torch.allclose(torch.tensor(answer), reference(folder, text), atol=1e-5)
    cached = [path.read_text() for path in (server.runs_in / "cache").glob("batch-*.json")]
    assert any('"same_length"' in content for content in cached)
