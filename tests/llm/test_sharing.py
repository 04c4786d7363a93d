"""Probes of a language model's answers find how it may be computed: in pieces, together or at
once.
"""

from typing import Any

import pytest
import torch
import transformers

from stoker.models.engines.sharing import ModelUnfitError
from stoker.models.llm import batch_invariance, probes
from stoker.models.llm.engines import torch as torch_engine
from stoker.models.llm.engines.torch import TorchRunner
from stoker.wire.protocol import Sharing

VOCABULARY = 300
SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
LLAMA = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 64}
PROMPTS = probes.drawn(VOCABULARY, 128, (30, 11, 17, 23))


def runner(config: str, **fields: Any) -> TorchRunner:
    transformers.set_seed(1)
    kind: Any = getattr(transformers, config)
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model: Any = transformers.AutoModelForCausalLM.from_config(
        kind(vocab_size=VOCABULARY, **tokens, **fields)
    )
    return TorchRunner(model.eval(), threads=1, cache_bytes=1 << 26)


def differs(found: TorchRunner) -> float:
    """Returns the difference from the model called directly, for prompts in pieces, together and at
    once.
    """
    known = torch.stack([found.direct(prompt) for prompt in PROMPTS])
    return probes.Probes(PROMPTS, known).difference(probes.computed(found, PROMPTS))


def test_pieces_and_company_change_nothing() -> None:
    llama_runner = runner("LlamaConfig", **LLAMA)
    assert batch_invariance.find(llama_runner) is Sharing.PADDED
    assert differs(llama_runner) < 1e-5


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> TorchRunner:
    """Returns a Mamba, with a state that continues by one token only. Only its answers reveal
    it.
    """
    monkeypatch.setattr(torch_engine, "_IN_ONE_PIECE", frozenset[str]())
    return runner("MambaConfig", hidden_size=64, num_hidden_layers=2, state_size=4)


def test_pieces_change_it(unlisted: TorchRunner) -> None:
    assert differs(unlisted) > 1e-3, "it tells nothing"
    assert batch_invariance.find(unlisted) is Sharing.ONE_PIECE
    assert differs(unlisted) < 1e-5


def test_what_was_found_is_kept_to(unlisted: TorchRunner) -> None:
    """A later replica receives the result and does not probe again."""
    unlisted.restrict(Sharing.ONE_PIECE)
    assert differs(unlisted) < 1e-5


def test_state_in_the_model() -> None:
    """RecurrentGemma keeps its state in its modules, so sequences continue from each other's
    state.
    """
    fields = {**SIZES, "lru_width": 64, "intermediate_size": 64, "attention_window_size": 16}
    with pytest.raises(ModelUnfitError, match="results differ when it is computed step by step"):
        batch_invariance.find(runner("RecurrentGemmaConfig", **fields))


def test_company_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No known architecture is changed by other sequences in the batch. A Llama that adds the
    batch's mean stands in for one.
    """
    llama_runner = runner("LlamaConfig", **LLAMA)
    forward = llama_runner.model.forward

    def mixed(*args: Any, **kwargs: Any) -> Any:
        outputs = forward(*args, **kwargs)
        outputs.logits = outputs.logits + outputs.logits.mean(0, keepdim=True)
        return outputs

    monkeypatch.setattr(llama_runner.model, "forward", mixed)
    assert batch_invariance.find(llama_runner) is Sharing.ALONE
    assert differs(llama_runner) < 1e-5


def test_steps_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot continue from its stored state is unfit."""
    llama_runner = runner("LlamaConfig", **LLAMA)
    forward = llama_runner.model.forward

    def forgetful(*args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        outputs = forward(*args, past_key_values=past_key_values, **kwargs)
        if past_key_values is not None and kwargs["input_ids"].shape[1] == 1:
            outputs.logits = outputs.logits.flip(-1)
        return outputs

    monkeypatch.setattr(llama_runner.model, "forward", forgetful)
    with pytest.raises(ModelUnfitError, match="results differ when it is computed step by step"):
        batch_invariance.find(llama_runner)
