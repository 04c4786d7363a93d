"""The forms of Text Embeddings Inference on models with one vector per token, on sparse models, and
on devices that pool their own vectors.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.models.tasks import feature_extraction
from stoker.models.tasks.feature_extraction import POOLED, UNPOOLED
from tests.other_servers.conftest import ENCODER, MODELS
from tests.other_servers.support import close
from tests.support.local import Local, RefusedError
from tests.support.models import tiny_bert
from tests.tasks.test_other_vectors import own, stanford

TEXTS = ["my name is clara", "the model team keeps hot", "a"]


class TestLateInteraction:
    @pytest.mark.parametrize("folder", [own, stanford])
    def test_own_vectors(self, tmp_path: Path, folder: Any) -> None:
        from sentence_transformers import MultiVectorEncoder

        path = folder(tmp_path)
        encoder: Any = MultiVectorEncoder(str(path), device="cpu")
        local = Local("feature-extraction", path)
        found = local.ask({"inputs": TEXTS}, "embed_all")
        for ours, theirs in zip(found, encoder.encode_document(TEXTS), strict=True):
            close(ours, theirs)
        (query,) = local.ask({"inputs": TEXTS[0], "prompt_name": "query"}, "embed_all")
        close(query, encoder.encode_query(TEXTS[:1])[0])
        assert local.ask({}, "info")["model_type"] == {"embedding": {"pooling": None}}
        for task in ("embed", "embed_sparse"):
            with pytest.raises(
                RefusedError, match="one vector per token: use /embed_all"
            ) as refused:
                local.ask({"inputs": TEXTS}, task)
            assert refused.value.failure.param == "model"
        left = {"inputs": TEXTS, "truncate": True, "truncation_direction": "Left"}
        with pytest.raises(RefusedError, match="must be 'Right'") as refused:
            local.ask(left, "embed_all")
        assert refused.value.failure.param == "truncation_direction"
        local.close()


class TestSparse:
    def test_as_sentence_transformers(self, tmp_path: Path) -> None:
        from sentence_transformers import SparseEncoder
        from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

        bert = tiny_bert(tmp_path / "bert", "ForMaskedLM")
        modules = [MLMTransformer(str(bert)), SpladePooling()]
        encoder: Any = SparseEncoder(modules=modules, device="cpu", prompts={"query": "who "})
        encoder.save_pretrained(str(tmp_path / "model"))
        local = Local("feature-extraction", tmp_path / "model")
        for prompt in (None, "query"):
            vectors = encoder.encode(TEXTS, prompt_name=prompt, convert_to_sparse_tensor=False)
            named = {"prompt_name": prompt} if prompt else {}
            found = local.ask({"inputs": TEXTS, **named}, "embed_sparse")
            for values, vector in zip(found, vectors, strict=True):
                wanted = vector.nonzero()[:, 0].tolist()
                assert [value["index"] for value in values] == wanted
                close([value["value"] for value in values], vector[wanted])
        for task in ("embed", "embed_all"):
            with pytest.raises(RefusedError, match=r"one sparse vector .* use /embed_sparse"):
                local.ask({"inputs": TEXTS}, task)
        assert local.ask({}, "info")["model_type"] == {"embedding": {"pooling": "splade"}}
        local.close()


class TestPoolingDevices:
    """A device that pools its vectors computes requests for all vectors apart."""

    @pytest.fixture
    def local(self, monkeypatch: pytest.MonkeyPatch) -> Local:
        local = Local("feature-extraction", MODELS / ENCODER)
        # The model pools as if the CPU were a GPU.
        monkeypatch.setattr(feature_extraction, "HOST", "none")
        return local

    def test_answers(self, local: Local) -> None:
        plain = Local("feature-extraction", MODELS / ENCODER)
        bodies = [{"inputs": TEXTS}] * 2
        found = local.ask_together([*bodies], "embed_all")
        for ours, theirs in zip(found[0], plain.ask(bodies[0], "embed_all"), strict=True):
            close(ours, theirs)
        assert found[0] != local.ask(bodies[0], "embed")
        plain.close()
        local.close()

    def test_batches(self, local: Local) -> None:
        stages: Any = local.stages
        parameters = {UNPOOLED: True, "makes": ("dense", "multi")}
        every = [stages.preprocess(text, parameters)[0] for text in TEXTS]
        pooled = [stages.preprocess(text, {})[0] for text in TEXTS]
        assert {sample.call for sample in every} == {UNPOOLED}
        keys = [stages.batch_key(sample) for sample in (every[0], every[1], pooled[0], pooled[1])]
        assert keys[0] == keys[1] != keys[2] == keys[3]
        outputs = local._engine.forward(every)
        for output, sample in zip(outputs, every, strict=True):
            assert POOLED not in output
            vectors = stages.vector(output, parameters)
            assert vectors.shape[0] == sample.features["input_ids"].shape[1]
            alone = stages.vector(local._engine.forward([sample])[0], parameters)
            torch.testing.assert_close(vectors, alone)
        assert all(POOLED in output for output in local._engine.forward(pooled))
        local.close()

    def test_in_main_memory_they_share_batches(self) -> None:
        local = Local("feature-extraction", MODELS / ENCODER)
        parameters = {UNPOOLED: True, "makes": ("dense", "multi")}
        stages: Any = local.stages
        assert stages.preprocess(TEXTS[0], parameters)[0].call == ()
        local.close()
