"""Tiny speech models with random weights, and their output when called directly."""

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tools.demo_models import common, random_speech

RATE = 24_000
LETTERS = string.ascii_lowercase + " '"

Waveform = NDArray[numpy.float32]


def vits(folder: Path, rate: int = RATE, **options: Any) -> Path:
    """Saves a VITS that reads letters."""
    transformers.set_seed(0)
    model, (tokenizer,) = random_speech.vits(rate=rate, **options)
    common.save(model, tokenizer, folder)
    return folder


def letters() -> Any:
    """Returns a tokenizer of single letters."""
    words = ["<pad>", "<unk>", "</s>", *LETTERS, *string.punctuation.replace("'", "")]
    made = Tokenizer(
        models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>")
    )
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="</s>",
        model_input_names=["input_ids", "attention_mask"],
    )


def speecht5(folder: Path, voices: Sequence[str] = ("clara", "omar")) -> Path:
    """Saves a SpeechT5 with its vocoder and its voices."""
    words = letters()
    words.save_pretrained(folder)
    config = transformers.SpeechT5Config(
        vocab_size=len(words),
        hidden_size=16,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=32,
        conv_dim=[16],
        conv_stride=[2],
        conv_kernel=[3],
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        speaker_embedding_dim=8,
        speech_decoder_prenet_units=16,
        speech_decoder_postnet_units=16,
        num_mel_bins=8,
        pad_token_id=0,
        max_speech_positions=32,
        max_text_positions=100,
    )
    transformers.set_seed(0)
    model = transformers.SpeechT5ForTextToSpeech(config)
    # Makes the model stop at its maximum length. Untrained, it would stop at once.
    torch.nn.init.constant_(model.speech_decoder_postnet.prob_out.bias, -3)
    model.save_pretrained(folder)
    vocoder = transformers.SpeechT5HifiGanConfig(
        model_in_dim=8,
        sampling_rate=16_000,
        upsample_initial_channel=16,
        upsample_rates=[8, 8],
        upsample_kernel_sizes=[16, 16],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        normalize_before=False,
        initializer_range=0.2,
    )
    transformers.SpeechT5HifiGan(vocoder).save_pretrained(folder / "vocoder")
    embeddings = {name: torch.randn(8) for name in voices}
    save_file(embeddings, folder / "speaker_embeddings.safetensors")
    return folder


def fastspeech2(folder: Path) -> Path:
    """Saves a FastSpeech2Conformer with its vocoder."""
    words = letters()
    words.save_pretrained(folder)
    config = transformers.FastSpeech2ConformerConfig(
        hidden_size=16,
        vocab_size=len(words),
        num_mel_bins=8,
        encoder_layers=1,
        encoder_linear_units=32,
        encoder_num_attention_heads=2,
        decoder_layers=1,
        decoder_linear_units=32,
        decoder_num_attention_heads=2,
        speech_decoder_postnet_layers=2,
        speech_decoder_postnet_units=16,
        duration_predictor_channels=16,
        energy_predictor_channels=16,
        pitch_predictor_channels=16,
    )
    vocoder = transformers.FastSpeech2ConformerHifiGanConfig(
        model_in_dim=8,
        upsample_initial_channel=16,
        upsample_rates=[8, 8],
        upsample_kernel_sizes=[16, 16],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        normalize_before=False,
        initializer_range=0.2,
        sampling_rate=22_050,
    )
    transformers.set_seed(0)
    both = transformers.FastSpeech2ConformerWithHifiGanConfig(
        model_config=config.to_dict(), vocoder_config=vocoder.to_dict()
    )
    model = transformers.FastSpeech2ConformerWithHifiGan(both)
    # Makes each token last for a while.
    torch.nn.init.constant_(model.model.duration_predictor.linear.bias, 1.6)
    model.save_pretrained(folder)
    return folder


def spoken(folder: Path, piece: str, seed: int, **options: Any) -> Waveform:
    """Returns the waveform of shape (samples,) that transformers itself generates with a VITS or
    FastSpeech2.
    """
    library: Any = transformers
    tokens = library.AutoTokenizer.from_pretrained(folder)(piece, return_tensors="pt")
    model = library.AutoModelForTextToWaveform.from_pretrained(folder).eval()
    torch.manual_seed(seed)
    with torch.inference_mode():
        inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        return model(**inputs, return_dict=True, **options).waveform[0].numpy()


def spoken_by_speecht5(folder: Path, piece: str, seed: int, voice: str, ratio: float) -> Waveform:
    library: Any = transformers
    tokens = library.AutoTokenizer.from_pretrained(folder)(piece, return_tensors="pt")
    model = library.SpeechT5ForTextToSpeech.from_pretrained(folder).eval()
    vocoder = library.SpeechT5HifiGan.from_pretrained(folder / "vocoder").eval()
    embedding = load_file(folder / "speaker_embeddings.safetensors")[voice]
    torch.manual_seed(seed)
    return model.generate_speech(
        tokens["input_ids"],
        embedding[None],
        tokens["attention_mask"],
        vocoder=vocoder,
        maxlenratio=ratio,
    ).numpy()
