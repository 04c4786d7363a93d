"""Speech: the audio of a text, synthesised sentence by sentence."""

import json
from collections.abc import Hashable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from typing_extensions import TypedDict

from stoker.models.stages.base import InputError, Sample, Stages
from stoker.models.stages.kinds import ModelKind
from stoker.models.stages.speech.folder import ARCHITECTURES, unfit
from stoker.models.stages.speech.sentences import pieces
from stoker.models.stages.speech.synthesizers import DEFAULT_VOICE, KINDS
from stoker.models.tasks.base import MediaPipeline

if TYPE_CHECKING:
    from collections.abc import Generator

    import torch

    from stoker.models.stages.base import StreamWriter

PATH = "/v1/audio/speech"

_STOCK = "alloy ash ballad cedar coral echo fable marin nova onyx sage shimmer verse"
OPENAI_VOICES = frozenset(_STOCK.split())
"""OpenAI's voices. A model with one voice accepts them as its own, because OpenAI's clients cannot
omit the voice.
"""
_SHOWN = 30
"""Maximum number of voices in an error."""
_FEATURES = ("input_ids", "attention_mask")


class Sound(TypedDict):
    audio: list[float]
    """Samples from -1 to 1."""
    sampling_rate: int


class Spoken(NamedTuple):
    """Voice and seed of a sample."""

    voice: str
    seed: int | None


class TextToSpeechStages(Stages):
    """Stages of speech. Each sentence is a sample; the answer is written while the sentences are
    synthesised.

    Each sample runs alone. In a batch, the final convolutions of these models would include the
    padding of shorter samples, and random numbers would depend on the other requests.
    """

    auto_class = ("AutoModelForTextToSpectrogram", "AutoModelForTextToWaveform")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        _refuse_unfit(folder)
        import transformers

        library: Any = transformers
        self._tokenizer: Any = library.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True
        )
        self._framing = len(self._tokenizer("")["input_ids"])

    def attach(self, model: Any) -> None:
        super().attach(model)
        self._synthesizer = KINDS[model.config.model_type](self.folder, model)

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        call = Spoken(self._voice(parameters.get("voice")), parameters.get("seed"))
        tokens = [self._tokens(piece) for piece in pieces(item)]
        samples = [
            Sample(features, call=call, alone=True)
            for features in tokens
            if features["input_ids"].shape[1] > self._framing
        ]
        if not samples:
            raise _refusal("input", "contains no character that this model can speak.")
        return samples

    def _tokens(self, text: str) -> "dict[str, torch.Tensor]":
        encoded = self._tokenizer(text, return_tensors="pt")
        count, limit = encoded["input_ids"].shape[1], self._synthesizer.max_tokens
        if limit and count > limit:
            raise _refusal(
                "input",
                f"has {count} tokens in a section of {len(text)} characters; this model "
                f"takes at most {limit}: {text[:50]!r}.",
            )
        return {name: encoded[name] for name in _FEATURES}

    def _voice(self, asked: str | None) -> str:
        voices = self._synthesizer.voices
        if asked in voices:
            return cast("str", asked)
        stock = asked is None or asked == DEFAULT_VOICE or asked in OPENAI_VOICES
        if stock and len(voices) == 1:
            return voices[0]
        known = ", ".join(voices[:_SHOWN])
        more = f" and {len(voices) - _SHOWN} more" if len(voices) > _SHOWN else ""
        raise _refusal("voice", f"must be one of the model's voices: {known}{more}.")

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        spoken = cast("Spoken", call)
        with _seeded(spoken.seed, model.device):
            return {"waveform": self._synthesizer.speak(batch, spoken.voice)}

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        spoken_ms = output["waveform"].shape[1] * 1000 // self._synthesizer.rate
        return super().counts(output) | {"audio_ms": spoken_ms}

    def writer(self, parameters: Mapping[str, Any], finishing: Mapping[str, Any]) -> "StreamWriter":
        from stoker.models.stages.speech.speech_writer import SpeechWriter

        return SpeechWriter(rate=self._synthesizer.rate, **finishing)

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Sound:
        """Returns the sentences in sequence, in the format of transformers' `text-to-audio`."""
        samples = [sample for output in outputs for sample in output["waveform"][0].tolist()]
        return Sound(audio=samples, sampling_rate=self._synthesizer.rate)


@contextmanager
def _seeded(seed: int | None, device: "torch.device") -> "Generator[None]":
    """Seeds random numbers as `torch.manual_seed` does, and restores the generator's state
    afterwards.
    """
    import torch

    library: Any = torch
    if seed is None:
        yield
        return
    with library.random.fork_rng([device] if device.type == "cuda" else []):
        library.manual_seed(seed)
        yield


def _refuse_unfit(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    tokenizer = folder / "tokenizer_config.json"
    settings: dict[str, Any] = json.loads(tokenizer.read_bytes()) if tokenizer.exists() else {}
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    if problem := unfit(config["architectures"][0], settings, names):
        raise ValueError(" ".join(problem))


def _refusal(field: str, what: str) -> InputError:
    return InputError(f"'{field}' {what}", field=field, of_item=False)


PIPELINE = MediaPipeline(
    name="text-to-speech",
    paths=(PATH,),
    architectures=ARCHITECTURES,
    families=("vits", "speecht5", "fastspeech2-conformer"),
    kind=ModelKind.LOOPS,
    stages=TextToSpeechStages,
    input_field="input",
)
