"""Tiny speech recognition models with random weights."""

import json
from pathlib import Path
from typing import Any

import sentencepiece
import transformers

from tests.support.language import tokenizer
from tests.support.sentencepieces import trained

LETTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"etaoinshrdlu"]
CTC = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 8, 4),
    "conv_stride": (5, 8, 8),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": len(LETTERS),
    "pad_token_id": 0,
    "initializer_range": 0.5,
}
BERT = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_depthwise_kernel_size": 5,
    "initializer_range": 0.5,
}
"""Configuration of Wav2Vec2-BERT. Its features always have as many values as a frame."""
SHORT_S = 2
"""Window of the tiny Whispers in seconds."""
WORDS = ["zero", "one", "two", "three"]
LANGUAGES = ("en", "zh", "de")


def _letters(folder: Path) -> None:
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({letter: at for at, letter in enumerate(LETTERS)}))
    transformers.Wav2Vec2CTCTokenizer(str(vocabulary)).save_pretrained(folder)


def _ctc(folder: Path, name: str, *, norm: str) -> None:
    library: Any = transformers
    stable = {} if name == "WavLM" else {"do_stable_layer_norm": norm == "layer"}
    config = getattr(library, f"{name}Config")(feat_extract_norm=norm, **stable, **CTC)
    getattr(library, f"{name}ForCTC")(config).save_pretrained(folder)
    masked = norm == "layer"
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=masked).save_pretrained(folder)
    _letters(folder)


def wav2vec2(folder: Path) -> None:
    _ctc(folder, "Wav2Vec2", norm="group")


def wav2vec2_layer(folder: Path) -> None:
    _ctc(folder, "Wav2Vec2", norm="layer")


def hubert(folder: Path) -> None:
    _ctc(folder, "Hubert", norm="layer")


def wavlm(folder: Path) -> None:
    _ctc(folder, "WavLM", norm="group")


def wav2vec2_bert(folder: Path) -> None:
    config = transformers.Wav2Vec2BertConfig(
        **BERT, num_hidden_layers=2, vocab_size=len(LETTERS), pad_token_id=0
    )
    transformers.Wav2Vec2BertForCTC(config).save_pretrained(folder)
    transformers.SeamlessM4TFeatureExtractor(padding_value=1).save_pretrained(folder)
    _letters(folder)


def speech_to_text(folder: Path) -> None:
    """Saves a Speech2Text with a tokenizer of a piece list and a SentencePiece model."""
    spelling = folder / "spelling.model"
    spelling.write_bytes(trained({"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}))
    pieces: Any = sentencepiece.SentencePieceProcessor(model_file=str(spelling))
    known = [pieces.id_to_piece(at) for at in range(3, pieces.get_piece_size())]
    listed = {word: at for at, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *known])}
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps(listed))
    words = transformers.Speech2TextTokenizer(str(vocabulary), str(spelling))
    words.save_pretrained(folder)
    spelling.unlink()
    config = transformers.Speech2TextConfig(
        vocab_size=len(listed),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        conv_channels=32,
        input_feat_per_channel=16,
        max_target_positions=64,
        init_std=0.5,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    model: Any = transformers.Speech2TextForConditionalGeneration(config)
    model.generation_config.update(max_length=20, num_beams=3, early_stopping=True)
    model.save_pretrained(folder)
    transformers.Speech2TextFeatureExtractor(feature_size=16, num_mel_bins=16).save_pretrained(
        folder
    )


def _whisper_tokenizer(*, multilingual: bool) -> Any:
    from tokenizers import pre_tokenizers

    languages = LANGUAGES if multilingual else ()
    names = ["endoftext", "startoftranscript", *languages, "translate", "transcribe"]
    names += ["startoflm", "startofprev", "nospeech", "notimestamps"]
    vocabulary = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: dict[tuple[str, str], None] = {}
    for word in WORDS:
        spelt = f"Ġ{word}"
        merges |= {(spelt[:at], spelt[at]): None for at in range(1, len(spelt))}
    vocabulary += [left + right for left, right in merges]
    made: Any = transformers.WhisperTokenizer(
        vocab={token: at for at, token in enumerate(vocabulary)},
        merges=list(merges),
        extra_special_tokens=[f"<|{name}|>" for name in names],
        pad_token="<|endoftext|>",
    )
    made.add_tokens([f"<|{at * 0.02:.2f}|>" for at in range(SHORT_S * 50 + 1)])
    return made


def _whisper(folder: Path, *, multilingual: bool) -> None:
    words = _whisper_tokenizer(multilingual=multilingual)
    ids = words.get_vocab()
    config = transformers.WhisperConfig(
        vocab_size=len(words),
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=SHORT_S * 50,
        max_target_positions=40,
        init_std=0.4,
        pad_token_id=ids["<|endoftext|>"],
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=ids["<|endoftext|>"],
        decoder_start_token_id=ids["<|startoftranscript|>"],
    )
    model: Any = transformers.WhisperForConditionalGeneration(config)
    more: dict[str, Any] = {"is_multilingual": False}
    if multilingual:
        more = {
            "is_multilingual": True,
            "lang_to_id": {f"<|{name}|>": ids[f"<|{name}|>"] for name in ("en", "de")},
            "task_to_id": {name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")},
        }
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=ids["<|startoftranscript|>"],
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        no_timestamps_token_id=ids["<|notimestamps|>"],
        suppress_tokens=[5, 6],
        begin_suppress_tokens=[ids["Ġ"]],
        max_initial_timestamp_index=50,
        max_length=40,
        alignment_heads=[[0, 1], [1, 0]],
        **more,
    )
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(
        feature_size=16, chunk_length=SHORT_S, return_attention_mask=True
    ).save_pretrained(folder)


def whisper(folder: Path) -> None:
    _whisper(folder, multilingual=True)


def whisper_english(folder: Path) -> None:
    _whisper(folder, multilingual=False)


def moonshine(folder: Path) -> None:
    words = tokenizer("t5")
    sizes: dict[str, Any] = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("num_hidden_layers", 1),
            ("num_attention_heads", 2),
            ("num_key_value_heads", 2),
        )
    }
    config = transformers.MoonshineConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        max_position_embeddings=300,
        initializer_range=0.5,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
        **sizes,
    )
    transformers.MoonshineForConditionalGeneration(config).save_pretrained(folder)
    words.save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(
        return_attention_mask=True, do_normalize=False
    ).save_pretrained(folder)


def stop_with_the_sound(model: Any, samples: Any) -> None:
    """Makes `generate` skip windows that begin in the padding of this clip.

    None restores the behavior of transformers, which transcribes them.
    """
    frames = None if samples is None else -(-len(samples) // 160)

    def retrieve(**given: Any) -> Any:
        segments, ahead = type(model)._retrieve_segment(**given)
        at = given["prev_idx"]
        seek = round(float(given["time_offset"][at]) * 100)
        is_over = frames is not None and seek + ahead >= frames
        return segments, given["seek_num_frames"][at] if is_over else ahead

    model._retrieve_segment = retrieve
