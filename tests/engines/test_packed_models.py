"""Text encoders answer the same in a packed batch as alone. Others are not packed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stoker.models.engines import sharing
from stoker.models.engines.layout import PackedLayout
from stoker.models.engines.packed_layers import PackedLayers
from stoker.models.engines.packing import TOKENS
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample
from stoker.models.tasks.registry import STAGES
from stoker.wire.protocol import Sharing
from tests.support.language import tokenizer

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 160,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WINDOWED = {
    "local_attention": 16,
    "global_attn_every_n_layers": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
PACKED: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("AlbertConfig", {"embedding_size": 16}),
    "bert": ("BertConfig", {}),
    "camembert": ("CamembertConfig", SPECIAL),
    "data2vec": ("Data2VecTextConfig", SPECIAL),
    "distilbert": ("DistilBertConfig", {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64}),
    "electra": ("ElectraConfig", {"embedding_size": 16}),
    "ernie": ("ErnieConfig", {}),
    "esm": ("EsmConfig", {"pad_token_id": 0, "mask_token_id": 4}),
    "eurobert": ("EuroBertConfig", GROUPED | SPECIAL),
    "gemma3": (
        "Gemma3TextConfig",
        GROUPED | SPECIAL | {"use_bidirectional_attention": True, "sliding_window": 16},
    ),
    "gte": ("GteConfig", {}),
    "jina": ("JinaEmbeddingsV3Config", SPECIAL),
    "mistral": ("MistralConfig", GROUPED | {"sliding_window": 16}),
    "modernbert": ("ModernBertConfig", SPECIAL | WINDOWED),
    "nomic": ("NomicBertConfig", {}),
    "qwen3": ("Qwen3Config", GROUPED),
    "roberta": ("RobertaConfig", SPECIAL),
    "xlm_roberta": ("XLMRobertaConfig", SPECIAL),
}
PADDED: dict[str, tuple[str, dict[str, Any]]] = {
    "deberta": ("DebertaV2Config", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "lfm2": (
        "Lfm2Config",
        {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention", "conv"]},
    ),
    "mpnet": ("MPNetConfig", {}),
    "t5": ("T5Config", {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}),
}
LENGTHS = (5, 21, 50, 9, 5, 33)
TOLERANCES = {"float32": 2e-5, "bfloat16": 3e-2}


def made(folder: Path, config: str, fields: dict[str, Any], side: str = "right") -> Path:
    """Saves a model with large random weights, so that a token that sees others changes much."""
    library: Any = transformers
    words = tokenizer("bert")
    words.padding_side = side
    words.save_pretrained(folder)
    transformers.set_seed(1)
    known = getattr(library, config)(vocab_size=len(words), **(SIZES | fields))
    is_t5 = config == "T5Config"
    model = library.T5EncoderModel(known) if is_t5 else library.AutoModel.from_config(known)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
    model.save_pretrained(folder)
    return folder


class Loaded:
    """Stages and engine of a model."""

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        self.stages = STAGES["feature-extraction"](folder)
        self.engine = TorchEngine("cpu", dtype, 1)
        self.stages.attach(self.engine.load(folder, self.stages, lambda *_: None))

    def find(self) -> Sharing:
        self.stages.sharing = sharing.find(self.engine, self.stages)
        return self.stages.sharing

    def samples(self) -> list[Sample]:
        probes = (self.stages.probe(length, 1 + at) for at, length in enumerate(LENGTHS))
        return [probe for probe in probes if probe]

    def hidden(self, samples: list[Sample], mode: Sharing) -> list[torch.Tensor]:
        self.stages.sharing = mode
        return [output["last_hidden_state"] for output in self.engine.forward(samples)]


def worst(packed: list[torch.Tensor], alone: list[torch.Tensor]) -> float:
    return max(
        float((ours - theirs).abs().max() / theirs.abs().max())
        for ours, theirs in zip(packed, alone, strict=True)
    )


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", PACKED)
def test_answers_are_the_same_as_alone(tmp_path: Path, name: str, dtype: str) -> None:
    model = Loaded(made(tmp_path, *PACKED[name]), dtype)
    assert model.find() is Sharing.PACKED
    samples = model.samples()
    alone = [model.hidden([sample], Sharing.ALONE)[0] for sample in samples]
    model.stages.sharing = Sharing.PACKED
    assert TOKENS in model.engine.batch(samples)
    for order in (1, -1):
        packed = model.hidden(samples[::order], Sharing.PACKED)[::order]
        assert worst(packed, alone) <= TOLERANCES[dtype]


@pytest.mark.parametrize("name", PADDED)
def test_other_attention_is_padded(tmp_path: Path, name: str) -> None:
    model = Loaded(made(tmp_path, *PADDED[name]))
    assert model.find() is Sharing.PADDED


@pytest.mark.parametrize("name", ["gemma3", "modernbert", "qwen3"])
def test_padding_on_the_left(tmp_path: Path, name: str) -> None:
    model = Loaded(made(tmp_path, *PACKED[name], side="left"))
    assert model.find() is Sharing.PACKED
    samples = model.samples()
    alone = [model.hidden([sample], Sharing.ALONE)[0] for sample in samples]
    assert worst(model.hidden(samples, Sharing.PACKED), alone) <= TOLERANCES["float32"]


class Convolved(torch.nn.Module):
    """Layer in which each token also reads its neighbours, but no padding."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: torch.Tensor, *more: Any, **options: Any) -> torch.Tensor:
        following = torch.nn.functional.pad(hidden, (0, 0, 1, 0))[:, :-1]
        output: torch.Tensor = self.layer(hidden, *more, **options)
        return output + 0.01 * following


class TestRefused:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Loaded:
        return Loaded(made(tmp_path, *PACKED["modernbert"]))

    def test_a_convolution(self, model: Loaded) -> None:
        """A causal convolution reads no padding, so the model can be padded. In a packed row it
        reads the sample before.
        """
        layers = model.engine.model.layers
        for at, layer in enumerate(list(layers)):
            kind: Any = layer.attention_type
            layers[at] = Convolved(layer)
            layers[at].attention_type = kind
        model.engine.layers = PackedLayers.of(model.engine.model)
        assert model.engine.layers
        assert model.find() is Sharing.PADDED

    def test_a_window_longer_than_the_other_probes(self, tmp_path: Path) -> None:
        """Attention that does not pass its window on is found by a text longer than the window."""
        fields = SPECIAL | WINDOWED | {"local_attention": 120}
        model = Loaded(made(tmp_path, "ModernBertConfig", fields))
        assert model.find() is Sharing.PACKED
        for layer in model.engine.model.layers:
            layer.attn.sliding_window = None
        assert model.find() is Sharing.PADDED

    def test_a_window_too_long_to_examine(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fields = SPECIAL | WINDOWED | {"local_attention": 120}
        model = Loaded(made(tmp_path, "ModernBertConfig", fields))
        monkeypatch.setattr(sharing, "_LONGEST_WINDOW", 40)
        assert model.find() is Sharing.PADDED

    def test_layers_that_do_not_attend(self, model: Loaded) -> None:
        """Layers that compute attention by other functions would mix the samples."""

        def attended(hidden: torch.Tensor, **_options: Any) -> tuple[torch.Tensor, None]:
            return hidden, None

        for layer in model.engine.model.layers:
            layer.attn.forward = attended
        assert model.find() is Sharing.PADDED

    def test_a_model_with_two_towers(self) -> None:
        sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
        config = transformers.CLIPConfig(
            text_config=sizes | {"num_attention_heads": 2},
            vision_config=sizes | {"num_attention_heads": 2, "image_size": 30},
        )
        assert PackedLayers.of(transformers.CLIPModel(config)) is None

    def test_a_failure_leaves_the_model_as_it_was(self, model: Loaded) -> None:
        (sample,) = model.samples()[:1]
        before = model.hidden([sample], Sharing.ALONE)
        for layer in model.engine.model.layers:
            layer.attn.config = None
        with pytest.raises(AttributeError):
            model.hidden(model.samples(), Sharing.PACKED)
        for layer in model.engine.model.layers:
            layer.attn.config = model.engine.model.config
        assert torch.equal(model.hidden([sample], Sharing.ALONE)[0], before[0])


class TestRestored:
    def test_an_engine_without_layers_pads(self, tmp_path: Path) -> None:
        engine = Loaded(made(tmp_path, *PACKED["bert"])).engine
        assert sharing.restored(engine, Sharing.PACKED) is Sharing.PACKED
        assert sharing.restored(engine, Sharing.ALONE) is Sharing.ALONE
        engine.layers = None
        assert sharing.restored(engine, Sharing.PACKED) is Sharing.PADDED

    def test_a_model_that_is_soon_converted_pads(self, tmp_path: Path) -> None:
        from stoker.models.engines.openvino import OpenVinoEngine

        folder = made(tmp_path, *PACKED["bert"])
        stages = STAGES["feature-extraction"](folder)
        engine = OpenVinoEngine("cpu", "float32", 1)
        stages.attach(engine.load(folder, stages, lambda *_: None))
        assert sharing.find(engine, stages) is Sharing.PADDED
        assert sharing.restored(engine, Sharing.PACKED) is Sharing.PADDED


def counted(model: Loaded) -> Callable[[], int]:
    """Returns a function that returns how many tokens the first layer computed in its last pass."""
    sizes: list[int] = [0]

    def record(_module: Any, arguments: tuple[Any, ...]) -> None:
        sizes.append(arguments[0].shape[:-1].numel())

    model.engine.model.encoder.layer[0].attention.register_forward_pre_hook(record)
    return lambda: sizes[-1]


def test_layers_compute_no_padding(tmp_path: Path) -> None:
    model = Loaded(made(tmp_path, *PACKED["bert"]))
    tokens, samples = counted(model), model.samples()
    model.hidden(samples, Sharing.PADDED)
    assert tokens() == len(LENGTHS) * 56
    model.hidden(samples, Sharing.PACKED)
    assert sum(LENGTHS) <= tokens() <= sum(LENGTHS) + 16


@pytest.mark.parametrize("name", ["bert", "modernbert", "qwen3"])
def test_shapes_for_a_gpu(tmp_path: Path, name: str) -> None:
    """A GPU's batches have dummy rows, wider rows and more dummy tokens. Answers stay the same."""
    model = Loaded(made(tmp_path, *PACKED[name]))
    model.engine.layout = PackedLayout(model.stages, torch.device("cuda"))
    assert model.find() is Sharing.PACKED
    samples = model.samples()
    alone = [model.hidden([sample], Sharing.ALONE)[0] for sample in samples] * 4
    model.stages.sharing = Sharing.PACKED
    assert TOKENS not in model.engine.batch(samples)
    batch = model.engine.batch(samples * 4)
    assert batch["input_ids"].shape == (32, 64)
    assert len(batch[TOKENS]) == 512
    assert worst(model.hidden(samples * 4, Sharing.PACKED), alone) <= TOLERANCES["float32"]
    outputs = model.engine.forward(samples * 4)
    assert all(output["last_hidden_state"].shape[0] == 1 for output in outputs)
    if name == "bert":
        assert {output["pooler_output"].shape for output in outputs} == {(1, 32)}


def test_outputs_leave_the_device_without_padding(tmp_path: Path) -> None:
    model = Loaded(made(tmp_path, *PACKED["bert"]))
    samples = model.samples()
    model.stages.sharing = Sharing.PACKED
    batch = model.engine.batch(samples)
    with torch.inference_mode():
        outputs = model.engine.run(samples[0].call, batch)
    assert outputs["last_hidden_state"].shape == (1, len(batch[TOKENS]), 32)
    assert outputs["pooler_output"].shape == (len(samples), 32)
    rows = model.engine.forward(samples)
    assert [len(row["last_hidden_state"][0]) for row in rows] == list(LENGTHS)
