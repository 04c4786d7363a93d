"""Whisper with torch and converted for OpenVINO: the same tokens, probabilities and answers."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers

import stoker.demo
from stoker.inference.openai.transcriptions import TranscriptionRequest
from stoker.media.media import Media
from stoker.models.engines.openvino import OpenVinoEngine
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample, Stages
from stoker.models.tasks.registry import STAGES
from stoker.runtime.interface import Call
from stoker.wire.protocol import Execution
from tests.support.conversion import conversion_of
from tests.support.local import Local
from tests.support.media import sound, wav
from tests.support.recognition import whisper

PIPELINE = "automatic-speech-recognition"
DEMO = Path(stoker.demo.__file__).parent
SPOKEN = [one.read_bytes() for one in sorted((DEMO / "media" / "spoken").glob("*.ogg"))[::4]]
SOUNDS = [wav(sound(seed, 0.3 + 0.2 * seed)) for seed in range(6)]
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "language": {"language": "de"},
    "times": {"timed": True},
    "prompt": {"prompt": "two one"},
    "translation": {"task": "translate"},
    "words": {"timed": True, "words": True},
}


@dataclass
class Pair:
    """Model that is loaded in both engines."""

    folder: Path
    converted: Execution
    stages: Stages
    torch: TorchEngine
    openvino: OpenVinoEngine
    recordings: list[bytes]

    def samples(self, **parameters: Any) -> list[Sample]:
        """Returns one window of each recording."""
        medias = [Media("audio", content=recording) for recording in self.recordings]
        return [self.stages.preprocess(media, parameters)[0] for media in medias]


def engine(kind: Any, folder: Path) -> Any:
    stages = STAGES[PIPELINE](folder)
    made = kind("cpu", "float32", 1)
    stages.attach(made.load(folder, stages, lambda *_: None))
    return made


def paired(folder: Path, recordings: list[bytes]) -> Pair:
    converted = conversion_of(folder, PIPELINE)
    quick = engine(OpenVinoEngine, folder)
    quick.prepare(converted)()
    torch_engine = engine(TorchEngine, folder)
    return Pair(folder, converted, quick.stages, torch_engine, quick, recordings)


@pytest.fixture(scope="module")
def random(tmp_path_factory: Any) -> Pair:
    folder = tmp_path_factory.mktemp("whisper") / "model"
    folder.mkdir()
    transformers.set_seed(1)
    whisper(folder)
    return paired(folder, SOUNDS)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: Any) -> Pair:
    folder = tmp_path_factory.mktemp("whisper") / "trained"
    folder.symlink_to(DEMO / "models" / "tiny-transcriber")
    return paired(folder, SPOKEN)


@pytest.fixture(scope="module", params=["random", "demo"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("form", FORMS)
def test_same_tokens_and_probabilities(pair: Pair, form: str) -> None:
    """Both engines agree, also if rows end at different times, as with the trained model."""
    samples = pair.samples(**FORMS[form])
    ours, theirs = pair.openvino.forward(samples), pair.torch.forward(samples)
    counts = [int(output["count"]) for output in theirs]
    assert len(set(counts)) > 1 or pair.folder.name != "trained"
    for output, other, sample in zip(ours, theirs, samples, strict=True):
        (alone,) = pair.openvino.forward([sample])
        for candidate in (output, alone):
            length = int(other["count"])
            assert int(candidate["count"]) == length
            assert torch.equal(candidate["language"], other["language"])
            for name in ("tokens", "logprobs", "times"):
                torch.testing.assert_close(
                    candidate[name][:, :length], other[name][:, :length], atol=1e-3, rtol=0
                )
            for name in ("average", "silence"):
                torch.testing.assert_close(candidate[name], other[name], atol=1e-3, rtol=0)


def test_what_runs_what(pair: Pair) -> None:
    """Word times are computed by torch, which reloads its weights for them. Other calls need no
    torch weights.
    """
    quick = engine(OpenVinoEngine, pair.folder)
    quick.prepare(pair.converted)()
    (sample, *_), (timed, *_) = pair.samples(), pair.samples(timed=True, words=True)
    quick.forward([sample])
    assert quick.name == "openvino"
    assert quick.model.device.type == "meta"
    quick.forward([timed])
    assert quick.model.device.type == "cpu"


def test_temperature(pair: Pair) -> None:
    """Both engines draw the same tokens from nearly the same distributions."""
    samples = pair.samples(temperature=0.8)
    tokens: list[Any] = []
    for backend in (pair.torch, pair.openvino):
        torch.manual_seed(3)
        tokens.append(backend.forward(samples[:1])[0]["tokens"])
    assert torch.equal(*tokens)


class TestAdoption:
    @pytest.fixture
    def local(self, random: Pair) -> Iterator[Local]:
        local = Local(PIPELINE, random.folder, in_openvino=True)
        yield local
        local.close()

    def answers(self, local: Local) -> list[Any]:
        request = TranscriptionRequest.model_validate(
            {"file": Media("audio", content=b""), "include": ["logprobs"]}
        )
        calls = [
            Call(
                task=PIPELINE,
                items=[Media("audio", content=recording)],
                parameters=request.parameters(),
                single=True,
                finishing=dict(request.finishing()),
            )
            for recording in SOUNDS
        ]
        return [json.loads(content) for content in local.answers(calls)]

    def check_same(self, found: list[Any], expected: list[Any]) -> None:
        """Checks that answers agree within a tolerance, because the batching of recordings
        varies.
        """
        for new, old in zip(found, expected, strict=True):
            assert new["text"] == old["text"]
            assert [token["logprob"] for token in new["logprobs"]] == pytest.approx(
                [token["logprob"] for token in old["logprobs"]], abs=1e-3
            )

    def test_between_two_batches(self, local: Local, random: Pair) -> None:
        before = self.answers(local)
        assert local.engine == "torch"
        local.adopt(random.converted)
        # The current batch still runs on torch.
        self.answers(local)
        after = self.answers(local)
        assert local.engine == "openvino"
        self.check_same(after, before)

    def test_damaged(self, local: Local, random: Pair, tmp_path: Path) -> None:
        """A conversion that cannot be read leaves torch in use."""
        before = self.answers(local)
        broken = shutil.copytree(random.converted.folder, tmp_path / "converted")
        (broken / "decoder.xml").write_text("<net")
        local.adopt(msgspec.structs.replace(random.converted, folder=str(broken)))
        for _ in range(2):
            self.check_same(self.answers(local), before)
        assert local.engine == "torch"
