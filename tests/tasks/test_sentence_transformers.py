"""Models that sentence-transformers saved, against sentence-transformers itself."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from stoker.inspection import InspectionError, inspect
from stoker.models.tasks.embeddings import EmbeddingsRequest
from stoker.models.tasks.registry import PIPELINES
from stoker.runtime.interface import Call
from tests.inspection.builders import FolderFiles
from tests.support.language import tokenizer
from tests.support.local import Local
from tests.support.models import tiny_bert

library: Any = transformers

PROMPTS = {"query": "who lives in paris: ", "document": "text: ", "none": ""}
TEXTS = [
    "clara lives in berlin.",
    "the tower is 324 metres tall, and it was built in paris",
    "a",
    "",
]
WIDTH, OUT = 32, 12


def modules() -> Any:
    from sentence_transformers.sentence_transformer import modules

    return modules


def saved(folder: Path, parts: list[Any], **options: Any) -> Path:
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=parts, device="cpu", **options).save_pretrained(str(folder))
    return folder


def transformer(folder: Path) -> Any:
    return modules().Transformer(str(tiny_bert(folder / "bert", "Model")), max_seq_length=24)


def expected(folder: Path, texts: list[str], **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(texts, **options)


def asked(local: Local, texts: Sequence[str | list[int]], **options: Any) -> Any:
    """Embeds texts through the endpoint that supports prompts, one at a time and all at once."""
    together = embedded(local, texts, **options)
    alone = [embedded(local, [text], **options)[0] for text in texts]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    return together


def embedded(local: Local, texts: Sequence[str | list[int]], **options: Any) -> Any:
    body = {"input": texts, "truncation": True, **options}
    request = EmbeddingsRequest.model_validate(body)
    items, single = request.items()
    call = Call(
        task="embeddings",
        items=items,
        single=single,
        parameters=request.parameters(),
        finishing={**request.finishing(), "model": "m"},
    )
    (answer,) = local.answers([call])
    return np.array([item["embedding"] for item in json.loads(answer)["data"]])


def check(folder: Path, texts: list[str] = TEXTS[:3]) -> np.ndarray[Any, Any]:
    """Returns the vectors. Checks that they match sentence-transformers and that inspection accepts
    the folder.
    """
    assert inspect(FolderFiles(folder), None, PIPELINES).pipeline == "feature-extraction"
    local = Local("feature-extraction", folder)
    try:
        vectors = asked(local, texts)
    finally:
        local.close()
    np.testing.assert_allclose(vectors, expected(folder, texts), atol=1e-5)
    assert len(np.unique(vectors.round(4), axis=0)) == len(texts)
    return vectors


@pytest.fixture(scope="module", params=["cls", "max", "mean", "weightedmean", "lasttoken"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saves a model that excludes its prompts from pooling."""
    root = tmp_path_factory.mktemp("prompts")
    pooling = modules().Pooling(WIDTH, pooling_mode=request.param, include_prompt=False)
    parts = [transformer(root), pooling]
    return saved(root / "model", parts, prompts=PROMPTS, default_prompt_name="document")


class TestPrompts:
    def test_are_read_and_not_pooled(self, folder: Path) -> None:
        local = Local("feature-extraction", folder)
        try:
            vectors_by_prompt = {
                name: asked(local, TEXTS[:3], prompt_name=name) for name in PROMPTS
            }
            without = asked(local, TEXTS[:3])
        finally:
            local.close()
        for name, vectors in vectors_by_prompt.items():
            theirs = expected(folder, TEXTS[:3], prompt_name=name)
            np.testing.assert_allclose(vectors, theirs, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(without, expected(folder, TEXTS[:3]), atol=1e-5)
        np.testing.assert_array_equal(without, vectors_by_prompt["document"])
        assert np.abs(vectors_by_prompt["query"] - vectors_by_prompt["none"]).max() > 1e-3, (
            "it is read all the same"
        )

    def test_longer_than_the_model_takes(self, folder: Path) -> None:
        """Truncation cuts the text. The prompt, which is excluded from pooling, may fill the whole
        input.
        """
        long = PROMPTS["query"] * 6
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(folder), device="cpu")
        model.prompts["long"] = long
        model.save_pretrained(str(folder.parent / "long"))
        local = Local("feature-extraction", folder.parent / "long")
        try:
            vectors = asked(local, TEXTS[:3], prompt_name="long")
        finally:
            local.close()
        theirs = expected(folder.parent / "long", TEXTS[:3], prompt_name="long")
        np.testing.assert_allclose(vectors, theirs, atol=1e-5)

    def test_tokens_have_none(self, folder: Path) -> None:
        local = Local("feature-extraction", folder)
        try:
            ids: list[int] = local.stages.tokenizer(TEXTS[0])["input_ids"]  # type: ignore[attr-defined]
            (vector,) = embedded(local, [ids])
        finally:
            local.close()
        theirs = expected(folder, [TEXTS[0]], prompt_name="none")[0]
        np.testing.assert_allclose(vector, theirs, atol=1e-5)


def test_prompts_are_pooled_where_nothing_is_said(tmp_path: Path) -> None:
    parts = [transformer(tmp_path), modules().Pooling(WIDTH)]
    folder = saved(tmp_path / "model", parts, prompts=PROMPTS, default_prompt_name="query")
    check(folder)


def dense(**options: Any) -> Any:
    torch.manual_seed(3)
    return modules().Dense(WIDTH, OUT, **options)


def norm(width: int) -> Any:
    torch.manual_seed(5)
    made = modules().LayerNorm(width)
    torch.nn.init.normal_(made.norm.weight)
    torch.nn.init.normal_(made.norm.bias)
    return made


AFTER: dict[str, Callable[[], list[Any]]] = {
    "layer norm": lambda: [norm(WIDTH)],
    "as in larger models": lambda: [dense(bias=False), norm(OUT), modules().Normalize()],
    "residual": lambda: [dense(use_residual=True, activation_function=torch.nn.Sigmoid())],
    "dropout": lambda: [modules().Dropout(0.5), dense(activation_function=torch.nn.GELU())],
}


class TestModules:
    @pytest.mark.parametrize("kind", AFTER)
    def test_after_pooling(self, kind: str, tmp_path: Path) -> None:
        parts = [transformer(tmp_path), modules().Pooling(WIDTH), *AFTER[kind]()]
        check(saved(tmp_path / "model", parts))

    def test_on_tokens(self, tmp_path: Path) -> None:
        tokens = {"module_input_name": "token_embeddings"}
        before = [dense(**tokens), modules().Normalize(**tokens)]
        parts = [transformer(tmp_path), *before, modules().Pooling(OUT)]
        check(saved(tmp_path / "model", parts))

    def test_of_all_layers(self, tmp_path: Path) -> None:
        first = transformer(tmp_path)
        first.model.config.output_hidden_states = True
        layers = modules().WeightedLayerPooling(WIDTH, num_hidden_layers=2, layer_start=1)
        torch.nn.init.uniform_(layers.layer_weights)
        parts = [first, layers, modules().Pooling(WIDTH)]
        check(saved(tmp_path / "model", parts))


SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
ENCODERS = {
    "t5": ("T5Config", "T5EncoderModel"),
    "t5 with its decoder": ("T5Config", "T5ForConditionalGeneration"),
    "mt5": ("MT5Config", "MT5EncoderModel"),
    "umt5": ("UMT5Config", "UMT5EncoderModel"),
    "longt5": ("LongT5Config", "LongT5EncoderModel"),
    "switch_transformers": ("SwitchTransformersConfig", "SwitchTransformersEncoderModel"),
    "pegasus": ("PegasusConfig", "PegasusModel"),
    "m2m_100": ("M2M100Config", "M2M100Model"),
    "marian": ("MarianConfig", "MarianModel"),
    "blenderbot": ("BlenderbotConfig", "BlenderbotModel"),
}


def encoder(kind: str, folder: Path) -> Path:
    config_class, model_class = ENCODERS[kind]
    transformers.set_seed(0)
    config = getattr(library, config_class)(**SIZES)
    getattr(library, model_class)(config).eval().save_pretrained(folder)
    tokenizer("t5").save_pretrained(folder)
    return folder


class TestEncoders:
    @pytest.mark.parametrize("kind", ENCODERS)
    def test_of_models_with_a_decoder(self, kind: str, tmp_path: Path) -> None:
        """The vectors match those of the whole model's encoder."""
        folder = encoder(kind, tmp_path)
        local = Local("feature-extraction", folder)
        try:
            vectors = asked(local, TEXTS[:3])
        finally:
            local.close()
        whole = library.AutoModel.from_pretrained(folder).eval().get_encoder()
        made = library.AutoTokenizer.from_pretrained(folder)
        for text, vector in zip(TEXTS, vectors, strict=False):
            with torch.inference_mode():
                hidden = whole(**made(text, return_tensors="pt")).last_hidden_state
            np.testing.assert_allclose(vector, hidden[0].mean(0), atol=1e-5)

    @pytest.mark.parametrize("kind", ["t5", "t5 with its decoder", "mt5", "umt5"])
    def test_as_sentence_t5(self, kind: str, tmp_path: Path) -> None:
        """Vectors are pooled, reduced and scaled to length one, as in the sentence-t5 and gtr-t5
        models.
        """
        encoder(kind, tmp_path / "t5")
        shrunk = dense(bias=False, activation_function=torch.nn.Identity())
        first = modules().Transformer(str(tmp_path / "t5"), max_seq_length=24)
        parts = [first, modules().Pooling(WIDTH), shrunk, modules().Normalize()]
        check(saved(tmp_path / "model", parts))


class TestComparing:
    """A query is compared with documents, and sentences with each other, by the prompts and the
    measure in the files.
    """

    @pytest.mark.parametrize(
        ("similarity", "options"),
        [
            ("cosine", {"prompts": PROMPTS}),
            ("dot", {"prompts": PROMPTS, "default_prompt_name": "query"}),
            ("euclidean", {"prompts": {"query": PROMPTS["query"]}}),
            ("manhattan", {"prompts": {"document": "text: "}, "default_prompt_name": "document"}),
            ("dot", {"prompts": {"passage": "text: "}, "default_prompt_name": "passage"}),
            ("dot", {"truncate_dim": 7}),
        ],
        ids=lambda value: str(value)[:50],
    )
    def test_as_sentence_transformers(
        self, tmp_path: Path, similarity: str, options: dict[str, Any]
    ) -> None:
        from sentence_transformers import SentenceTransformer

        pooling = modules().Pooling(WIDTH, pooling_mode="mean")
        parts = [transformer(tmp_path), pooling]
        folder = saved(tmp_path / "model", parts, similarity_fn_name=similarity, **options)
        encoder = SentenceTransformer(str(folder), device="cpu")
        query, texts = "who lives in berlin?", TEXTS[:3]
        scores = encoder.similarity(encoder.encode_query(query), encoder.encode_document(texts))[0]
        vectors = encoder.encode([query, *texts])
        likenesses = encoder.similarity(vectors[:1], vectors[1:])[0]
        with closing(Local("feature-extraction", folder)) as local:
            body = {"query": query, "documents": texts, "truncation": True}
            ranked = local.ask(body, "rerank")["results"]
            asked_alone = [
                local.ask({**body, "documents": [text]}, "rerank")["results"][0]["relevance_score"]
                for text in texts
            ]
            sentences = {"source_sentence": query, "sentences": texts, "truncation": True}
            alike = local.ask(sentences, "similarity")
            embedding = asked(local, texts)
            plain = local.ask({"inputs": texts, "truncation": True})
        best = sorted(range(len(texts)), key=lambda index: -float(scores[index]))
        assert [result["index"] for result in ranked] == best
        scores_by_index = {result["index"]: result["relevance_score"] for result in ranked}
        tolerance = {"atol": 1e-4, "rtol": 1e-5}
        np.testing.assert_allclose(
            [scores_by_index[index] for index in range(3)], scores, **tolerance
        )
        np.testing.assert_allclose(asked_alone, scores, **tolerance)
        np.testing.assert_allclose(alike, likenesses, **tolerance)
        np.testing.assert_allclose(embedding, vectors[1:], atol=1e-5)
        np.testing.assert_allclose(plain, vectors[1:], atol=1e-5)

    def test_a_length_of_vectors_that_is_no_number(self, tmp_path: Path) -> None:
        parts = [transformer(tmp_path), modules().Pooling(WIDTH, pooling_mode="mean")]
        folder = saved(tmp_path / "model", parts)
        path = folder / "config_sentence_transformers.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "truncate_dim": "7"}))
        with pytest.raises(InspectionError, match="truncate_dim '7'"):
            inspect(FolderFiles(folder), None, PIPELINES)

    def test_settings_without_effect_are_told(self, tmp_path: Path) -> None:
        parts = [transformer(tmp_path), modules().Pooling(WIDTH, pooling_mode="mean")]
        folder = saved(tmp_path / "model", parts)
        path = folder / "sentence_bert_config.json"
        for arguments, expected in (({}, []), ({"model_max_length": 9}, ["tokenizer_args"])):
            path.write_text(
                json.dumps({**json.loads(path.read_text()), "tokenizer_args": arguments})
            )
            with closing(Local("feature-extraction", folder)) as local:
                messages = [notice.message for notice in local.stages.notices]
            assert [words.split("'")[1] for words in messages] == expected
