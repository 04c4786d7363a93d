"""Speech synthesis of each kind of model. A new kind is a class here and a line in `KINDS`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.models.stages.speech.folder import VOCODER, VOICES

if TYPE_CHECKING:
    import torch

Features = Mapping[str, "torch.Tensor"]

DEFAULT_VOICE = "default"
"""Name of the voice of a model with only one."""


class Synthesizer(ABC):
    """Speaks one text at a time, because padding would change the end of a shorter text's sound."""

    rate: int
    """Sampling rate of the sound, in Hz."""
    voices: Sequence[str]
    max_tokens: int | None = None
    """Maximum number of tokens of a text. None means no limit."""

    def __init__(self, folder: Path, model: Any) -> None:
        self.model = model

    @abstractmethod
    def speak(self, features: Features, voice: str) -> "torch.Tensor":
        """Returns sound of shape (1, samples), from -1 to 1.

        `features` are `input_ids` and `attention_mask`, int64 of shape (1, tokens).
        """


class Vits(Synthesizer):
    """VITS, https://arxiv.org/abs/2106.06103. Draws durations and sound at random."""

    def __init__(self, folder: Path, model: Any) -> None:
        super().__init__(folder, model)
        self.rate = int(model.config.sampling_rate)
        self.voices = _numbered(model.config.num_speakers)

    def speak(self, features: Features, voice: str) -> "torch.Tensor":
        speaker = None if voice == DEFAULT_VOICE else int(voice)
        return self.model(**features, speaker_id=speaker).waveform


class SpeechT5(Synthesizer):
    """SpeechT5, https://arxiv.org/abs/2110.07205. Its decoder applies random dropout, even in
    inference.
    """

    def __init__(self, folder: Path, model: Any) -> None:
        super().__init__(folder, model)
        import transformers

        library: Any = transformers
        vocoder = library.SpeechT5HifiGan.from_pretrained(
            str(folder / VOCODER), local_files_only=True, use_safetensors=True, dtype=model.dtype
        )
        self._vocoder = vocoder.to(model.device).eval()
        self._embeddings = _embeddings(folder / VOICES, model)
        self.rate = int(vocoder.config.sampling_rate)
        self.voices = list(self._embeddings)
        self.max_tokens = int(model.config.max_text_positions)

    def speak(self, features: Features, voice: str) -> "torch.Tensor":
        config, tokens = self.model.config, features["input_ids"].shape[1]
        # transformers stops after a number of frames per token, which may exceed its positions.
        longest = config.max_speech_positions * config.reduction_factor / tokens
        return self.model.generate_speech(
            **features,
            speaker_embeddings=self._embeddings[voice][None],
            vocoder=self._vocoder,
            maxlenratio=min(20.0, longest),
        )[None]


class FastSpeech2(Synthesizer):
    """FastSpeech2Conformer with its vocoder: https://arxiv.org/abs/2010.13956."""

    def __init__(self, folder: Path, model: Any) -> None:
        super().__init__(folder, model)
        config = model.config.model_config
        if config.speaker_embed_dim or config.num_languages:
            raise ValueError(
                "FastSpeech2Conformer is supported with one voice or numbered voices, and "
                "without languages: speaker_embed_dim and num_languages must not be set"
            )
        self.rate = int(model.config.vocoder_config.sampling_rate)
        self.voices = _numbered(config.num_speakers or 1)

    def speak(self, features: Features, voice: str) -> "torch.Tensor":
        import torch

        numbers = torch.tensor([[int(voice)]]) if voice != DEFAULT_VOICE else None
        speaker = None if numbers is None else numbers.to(self.model.device)
        return self.model(**features, speaker_ids=speaker, return_dict=True).waveform


KINDS: Mapping[str, Callable[[Path, Any], Synthesizer]] = {
    "vits": Vits,
    "speecht5": SpeechT5,
    "fastspeech2_conformer_with_hifigan": FastSpeech2,
}
"""Maps a model's kind, `config.model_type`, to its synthesizer."""


def _numbered(count: int) -> Sequence[str]:
    return [str(number) for number in range(count)] if count > 1 else [DEFAULT_VOICE]


def _embeddings(path: Path, model: Any) -> "dict[str, torch.Tensor]":
    """Returns the voices of a file in the model's format. Raises `ValueError`."""
    import safetensors.torch

    library: Any = safetensors.torch
    vectors: dict[str, torch.Tensor] = library.load_file(path)
    shape = (model.config.speaker_embedding_dim,)
    if wrong := [name for name, vector in vectors.items() if vector.shape != shape]:
        raise ValueError(f"the voice {wrong[0][:100]!r} is not a vector of {shape[0]} numbers")
    if not vectors:
        raise ValueError("the file of voices contains no voice")
    return {name: vectors[name].to(model.device, model.dtype) for name in sorted(vectors)}
