"""An untrained VITS that is small enough to be built within a moment."""

import json
import string
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

_LETTERS = string.ascii_lowercase + " '"
_PEAK = 0.7


def vits(
    *, speakers: int = 1, rate: int = 16_000, phonemize: bool = False
) -> tuple[Any, list[Any]]:
    """Returns a model that reads lower-case letters, and its tokenizer."""
    config = transformers.VitsConfig(
        vocab_size=len(_LETTERS) + 1,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=32,
        flow_size=16,
        spectrogram_bins=17,
        duration_predictor_num_flows=2,
        duration_predictor_filter_channels=16,
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=2,
        posterior_encoder_num_wavenet_layers=1,
        upsample_initial_channel=16,
        upsample_rates=[8, 8],
        upsample_kernel_sizes=[16, 16],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        wavenet_dilation_rate=1,
        speaking_rate=2.0,
        num_speakers=speakers,
        speaker_embedding_size=8 if speakers > 1 else 0,
        sampling_rate=rate,
    )
    model: Any = transformers.VitsModel(config)
    with torch.no_grad():
        # Without scaling, the untrained model would be almost silent.
        peak = model(torch.arange(1, 25)[None]).waveform.abs().max()
        model.decoder.conv_post.weight.mul_(_PEAK / peak)
    return model, [_tokenizer(phonemize)]


def _tokenizer(phonemize: bool) -> Any:
    vocabulary = {"<pad>": 0, **{letter: at for at, letter in enumerate(_LETTERS, 1)}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.json"
        path.write_text(json.dumps(vocabulary))
        return transformers.VitsTokenizer(str(path), unk_token="<pad>", phonemize=phonemize)  # noqa: S106
