"""How a language model may be computed is found from its answers: in pieces, together, at once."""

from typing import Any

import pytest
import torch
import transformers

from stoker.models.engines.sharing import UnfitError
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
    """From the model called directly, of prompts in pieces, together and at once."""
    known = torch.stack([found.direct(one) for one in PROMPTS])
    return probes.Probes(PROMPTS, known).difference(probes.computed(found, PROMPTS))


def test_pieces_and_company_change_nothing() -> None:
    found = runner("LlamaConfig", **LLAMA)
    assert batch_invariance.find(found) is Sharing.PADDED
    assert differs(found) < 1e-5


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> TorchRunner:
    """Mamba, whose state goes on by one token only; nothing says so but its answers."""
    monkeypatch.setattr(torch_engine, "_IN_ONE_PIECE", frozenset[str]())
    return runner("MambaConfig", hidden_size=64, num_hidden_layers=2, state_size=4)


def test_pieces_change_it(unlisted: TorchRunner) -> None:
    assert differs(unlisted) > 1e-3, "it tells nothing"
    assert batch_invariance.find(unlisted) is Sharing.ONE_PIECE
    assert differs(unlisted) < 1e-5


def test_what_was_found_is_kept_to(unlisted: TorchRunner) -> None:
    """A later replica is told, and does not look again."""
    unlisted.restrict(Sharing.ONE_PIECE)
    assert differs(unlisted) < 1e-5


def test_state_in_the_model() -> None:
    """RecurrentGemma keeps it in its modules, so that sequences go on from one another's."""
    fields = {**SIZES, "lru_width": 64, "intermediate_size": 64, "attention_window_size": 16}
    with pytest.raises(UnfitError, match="other tokens when it is computed step by step"):
        batch_invariance.find(runner("RecurrentGemmaConfig", **fields))


def test_company_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No architecture is known that does; one is made of Llama by adding the batch's mean."""
    found = runner("LlamaConfig", **LLAMA)
    forward = found.model.forward

    def mixed(*args: Any, **kwargs: Any) -> Any:
        outputs = forward(*args, **kwargs)
        outputs.logits = outputs.logits + outputs.logits.mean(0, keepdim=True)
        return outputs

    monkeypatch.setattr(found.model, "forward", mixed)
    assert batch_invariance.find(found) is Sharing.ALONE
    assert differs(found) < 1e-5


def test_steps_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot go on from what it has kept."""
    found = runner("LlamaConfig", **LLAMA)
    forward = found.model.forward

    def forgetful(*args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        outputs = forward(*args, past_key_values=past_key_values, **kwargs)
        if past_key_values is not None and kwargs["input_ids"].shape[1] == 1:
            outputs.logits = outputs.logits.flip(-1)
        return outputs

    monkeypatch.setattr(found.model, "forward", forgetful)
    with pytest.raises(UnfitError, match="other tokens when it is computed step by step"):
        batch_invariance.find(found)
