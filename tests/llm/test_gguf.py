"""Models read from GGUF, compared with the models that they were written from."""

import shutil
from pathlib import Path
from typing import Any

import gguf as library_gguf
import pytest
import torch
import transformers

import stoker.demo
from stoker.inspection import inspect
from stoker.models.chat.prompts.prompts import Prompts
from stoker.models.llm import gguf_checkpoint
from stoker.models.llm.checkpoint import load_generation_config, load_model, load_tokenizer
from stoker.models.llm.engines.export import TOLERANCE, export
from stoker.models.llm.engines.openvino import OpenVinoRunner
from stoker.models.llm.scheduler import Scheduler
from stoker.models.stages.base import InputError
from stoker.models.tasks.registry import PIPELINES
from stoker.wire.generation_request import Conversation
from tests.inspection.builders import FolderFiles
from tests.llm.support import GREEDY, VOCABULARY, Answers, generated, submission, tokenizer
from tests.support import gguf as writing
from tests.support.gguf import write_gguf

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
library: Any = transformers

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
GEMMA3_ROPE = {
    "full_attention": LINEAR | {"rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}),
    "llama-tied-wide": ("llama", {"head_dim": 32, "tie_word_embeddings": True}),
    "llama-3.1": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 16,
            "num_hidden_layers": 6,
            "rope_parameters": GEMMA3_ROPE,
        },
    ),
    "phi3": ("phi3", {"partial_rotary_factor": 0.5, "sliding_window": 64}),
}


def made(name: str, folder: Path) -> Any:
    kind, settings = MODELS[name]
    transformers.set_seed(0)
    config = library.AutoConfig.for_model(kind, **{**SIZES, "eos_token_id": 2, **settings})
    model = library.AutoModelForCausalLM.from_config(config).eval()
    for parameter_name, parameter in model.named_parameters():
        # Biases and norms are initialized to zeros and ones, which would hide that they are lost.
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.0 if "bias" in parameter_name else 1.0, 0.3)
    model.save_pretrained(folder)
    return model


def read(folder: Path) -> Any:
    return load_model(folder, dtype=torch.float32).eval()


PROMPT = [(7 * n) % 96 for n in range(100)]


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(torch.tensor([PROMPT])).logits[0]


def rewritten(original: Any, stored: str) -> Any:
    """Returns the model with its matrices rounded as a file of this type stores them."""
    kind = library_gguf.GGMLQuantizationType[stored]
    for parameter in original.parameters():
        if parameter.dim() > 1:
            numbers = library_gguf.quantize(parameter.detach().numpy(), kind)
            parameter.data = torch.tensor(library_gguf.dequantize(numbers, kind))
    return original


def written(source: Path, folder: Path, *arguments: Any, **options: Any) -> Path:
    folder.mkdir()
    write_gguf(source, folder / "model.gguf", *arguments, **options)
    return folder


@pytest.mark.parametrize("stored", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize("name", MODELS)
def test_computes_what_the_stored_numbers_do(name: str, stored: str, tmp_path: Path) -> None:
    """In single precision the result is the original; otherwise it is the original with rounded
    numbers.
    """
    original = rewritten(made(name, tmp_path / "a"), stored)
    folder = written(tmp_path / "a", tmp_path / "b", stored)
    inspection = inspect(FolderFiles(folder), None, PIPELINES)
    assert inspection.architecture == type(original).__name__
    assert inspection.model_type == original.config.model_type
    extra = name == "llama-3.1"  # factors of its frequencies
    assert inspection.parameters == original.num_parameters() + 8 * extra
    model = read(folder)
    assert generated(model, PROMPT, 20) == generated(original, PROMPT, 20)
    expected = logits(original)
    assert (logits(model) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_positions_of_llama_3_are_not_left_out(tmp_path: Path) -> None:
    """Without the file's factors the answer differs, so the comparison above is meaningful."""
    original = made("llama-3.1", tmp_path / "a")
    expected = logits(original)
    original.model.rotary_emb.inv_freq.copy_(1 / 500 ** (torch.arange(0, 16, 2) / 16))
    assert (logits(original) - expected).abs().max() > 0.1


def test_a_missing_tensor_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made("llama", tmp_path / "a")
    whole = writing.tensors
    monkeypatch.setattr(
        writing,
        "tensors",
        lambda *given: {k: v for k, v in whole(*given).items() if k != "blk.1.ffn_up.weight"},
    )
    folder = written(tmp_path / "a", tmp_path / "b")
    with pytest.raises(gguf_checkpoint.GgufError, match=r"lacks 1 .*layers\.1\.mlp\.up_proj"):
        read(folder)


def test_safetensors_come_first(llama: Path, tmp_path: Path) -> None:
    folder = written(llama, tmp_path / "b")
    assert gguf_checkpoint.gguf_file(folder) == "model.gguf"
    (folder / "model.safetensors").touch()
    assert gguf_checkpoint.gguf_file(folder) is None


class TestTokenizer:
    TEXTS = (
        "The model answers what it was asked:  the weather, 21 degrees!",
        "<|im_start|>user\nHi<|im_end|>\n<tool_call>{}</tool_call> d\u00e9j\u00e0 \u4e2d\U0001f600",
        "a\n\n  b\tc\r\nIT'S it's 12345",
        "",
    )

    def test_of_the_file(self, llama: Path, tmp_path: Path) -> None:
        original = tokenizer()
        loaded = load_tokenizer(written(llama, tmp_path / "b"))
        for text in self.TEXTS:
            tokens = original(text).input_ids
            assert loaded(text).input_ids == tokens
            assert loaded.decode(tokens) == original.decode(tokens)
            for skip in (True, False):
                theirs = original.decode(tokens, skip_special_tokens=skip)
                assert loaded.decode(tokens, skip_special_tokens=skip) == theirs
        assert loaded.eos_token == original.eos_token
        assert loaded.chat_template == original.chat_template

    def test_beside_the_file(self, tmp_path: Path) -> None:
        """A tokenizer.json next to the file is used. The demo's model splits texts in its own way,
        which a GGUF cannot express.
        """
        folder = written(MODEL, tmp_path / "b")
        original = library.AutoTokenizer.from_pretrained(MODEL)
        text = "one\n\ntwo"
        assert load_tokenizer(folder)(text).input_ids != original(text).input_ids
        shutil.copy(MODEL / "tokenizer.json", folder)
        loaded = load_tokenizer(folder)
        assert loaded(text).input_ids == original(text).input_ids
        assert loaded.eos_token == "<|im_end|>"
        assert loaded.chat_template == original.chat_template

    def test_ends_and_sampling(self, llama: Path, tmp_path: Path) -> None:
        folder = written(llama, tmp_path / "b", numbers={"tokenizer.ggml.eot_token_id": 7})
        ends = [tokenizer().eos_token_id, 7]
        assert load_generation_config(folder)[0] == {"eos_token_id": ends}
        (folder / "generation_config.json").write_text('{"eos_token_id": 5, "top_k": 3}')
        assert load_generation_config(folder)[0] == {"eos_token_id": 5, "top_k": 3}

    @pytest.mark.case(5)
    @pytest.mark.parametrize(
        "template",
        [
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{% for x in ().__class__.__base__.__subclasses__() %}{{ x() }}{% endfor %}",
            "{{ messages.append(1) }}",
        ],
    )
    def test_its_template_cannot_run_code(self, template: str, llama: Path, tmp_path: Path) -> None:
        """CVE-2024-34359: a GGUF's template that reaches Python's classes is not rendered."""
        folder = written(llama, tmp_path / "b", template=template)
        prompts = Prompts(folder, max_length=320, vocabulary=VOCABULARY)
        assert prompts.tokenizer.chat_template == template
        talk = Conversation(messages=[{"role": "user", "content": "x"}])
        with pytest.raises(InputError, match="cannot be rendered"):
            prompts.prepare(talk, "messages")


def test_openvino_answers_as_torch_does(llama: Path, tmp_path: Path) -> None:
    folder = written(llama, tmp_path / "b")
    converted = tmp_path / "converted"
    converted.mkdir()
    assert export(folder, converted, threads=1) <= TOLERANCE
    runner = OpenVinoRunner(converted, threads=1, precision="f32", cache_bytes=1 << 20)
    answers = Answers(Scheduler(runner, ()))
    answers.scheduler.submit(submission(0, PROMPT))
    answers.drain()
    assert answers.tokens[0] == generated(read(folder), PROMPT, GREEDY.max_tokens or 0)
