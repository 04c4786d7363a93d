"""`tiny-transcriber`: transcribes spoken digits with times, and translates German ones to
English.
"""

import copy
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from tokenizers import pre_tokenizers
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)
from transformers.models.whisper import modeling_whisper

from tools.demo_models import common, speech, vision
from tools.demo_models.speech import LONGEST, RATE, WORDS, Clip

TAKES = 2
"""Number of renderings per digit, speaker and accent. Doubled for German."""
CLIPS = 5_000
HEARING_STEPS, STEPS = 1_300, 2_200
"""Training steps of the encoder alone, then of the whole model."""
BATCH = 16
CUT = 0.25
"""Share of clips that are windows into longer speech."""
MELS = 40
STEP = 0.02
"""Seconds between two positions of the encoder, and between two timestamps."""
NEAR = (0.05, 0.1, 0.2, 0.3, 0.2, 0.1, 0.05)
"""Weights of a timestamp and its neighbours, because a nearby timestamp is nearly correct."""
TARGET = 64
"""Maximum tokens of a prompt and a transcript together."""
LARGEST = 3_000_000
"""Maximum size of the folder in bytes."""
# Whisper's tokenizer finds a language's token by its position in the list of all its languages. In
# that list, Chinese is between these two.
_LANGUAGES = ("en", "zh", "de")
_IGNORED = -100


def _specials() -> list[str]:
    names = [
        "endoftext",
        "startoftranscript",
        *_LANGUAGES,
        "translate",
        "transcribe",
        "startoflm",
        "startofprev",
        "nospeech",
        "notimestamps",
    ]
    return [f"<|{name}|>" for name in names]


def tokenizer() -> WhisperTokenizer:
    """Returns Whisper's own tokenizer, in which each digit's name with the preceding space is one
    token.
    """
    pieces: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    vocabulary = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: dict[tuple[str, str], None] = {}
    for word in (word for words in WORDS.values() for word in words):
        ((spelt, _),) = pieces.pre_tokenize_str(f" {word}")
        merges |= {(spelt[:at], spelt[at]): None for at in range(1, len(spelt))}
    vocabulary += [left + right for left, right in merges]
    made: Any = WhisperTokenizer(
        vocab={token: at for at, token in enumerate(vocabulary)},
        merges=list(merges),
        extra_special_tokens=_specials(),
        pad_token=_specials()[0],
        model_max_length=TARGET,
    )
    # Not special, so that callers can decide whether to decode them.
    made.add_tokens([f"<|{at * STEP:.2f}|>" for at in range(round(LONGEST / STEP) + 1)])
    return made


def extractor() -> WhisperFeatureExtractor:
    """Returns Whisper's own extractor, with a window of `LONGEST` instead of thirty seconds."""
    return WhisperFeatureExtractor(
        feature_size=MELS, sampling_rate=RATE, chunk_length=int(LONGEST), return_attention_mask=True
    )


def _generation(ids: dict[str, int], model: WhisperConfig) -> GenerationConfig:
    return GenerationConfig(
        decoder_start_token_id=ids["<|startoftranscript|>"],
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        no_timestamps_token_id=ids["<|notimestamps|>"],
        max_length=TARGET,
        max_initial_timestamp_index=round(LONGEST / STEP),
        is_multilingual=True,
        lang_to_id={f"<|{language}|>": ids[f"<|{language}|>"] for language in WORDS},
        task_to_id={task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        # Heads of the last layer, from which the words' times are read.
        alignment_heads=[
            [model.decoder_layers - 1, head] for head in range(model.decoder_attention_heads)
        ],
        return_timestamps=False,
    )


def _model(ids: dict[str, int], tokens: int) -> WhisperForConditionalGeneration:
    config = WhisperConfig(
        vocab_size=tokens,
        num_mel_bins=MELS,
        d_model=96,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_source_positions=round(LONGEST / STEP),
        max_target_positions=TARGET,
        dropout=0.0,
        init_std=0.05,
        pad_token_id=ids["<|endoftext|>"],
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=ids["<|endoftext|>"],
        decoder_start_token_id=ids["<|startoftranscript|>"],
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config = _generation(ids, config)
    return model


class _Target(NamedTuple):
    """A token that the decoder must write, and the seconds of sound that it should attend to."""

    token: int
    span: tuple[float, float] | None = None


class _Lessons:
    """Converts clips to the model's inputs and target tokens."""

    def __init__(self, rng: Random, hearing: Any, words: Any) -> None:
        self._rng, self._hearing, self._words = rng, hearing, words
        self.ids: dict[str, int] = words.get_vocab()
        self.first_time = self.ids["<|notimestamps|>"] + 1

    def batch(self, clips: Sequence[Clip], features: Tensor) -> common.Batch:
        """Returns the features, the decoder's input and targets, and the digits for the encoder
        alone.
        """
        rows = [self._row(clip) for clip in clips]
        end = self.ids["<|endoftext|>"]
        digits = [clip.digits for clip in clips]
        names = [list(WORDS).index(clip.language) * 10 for clip in clips]
        labels = common.padded([[target.token for target in row] for _, row in rows], _IGNORED)
        return {
            "input_features": features,
            "decoder_input_ids": common.padded([read for read, _ in rows], end),
            "labels": labels,
            "looked_at": _looked_at([row for _, row in rows], labels.shape[1]),
            "spoken": torch.tensor(
                [1 + name + digit for name, row in zip(names, digits, strict=True) for digit in row]
            ),
            "lengths": torch.tensor([len(row) for row in digits]),
        }

    def features(self, clips: Sequence[Clip]) -> Tensor:
        """Returns `[clips, mels, frames]` of float32, as the served model receives them."""
        waves = [clip.samples for clip in clips]
        return self._hearing(waves, sampling_rate=RATE, return_tensors="pt")["input_features"]

    def _row(self, clip: Clip) -> tuple[list[int], list[_Target]]:
        """Returns the decoder's input and the target at each position."""
        rng, ids = self._rng, self.ids
        task = "translate" if rng.random() < 0.25 else "transcribe"
        is_timed = rng.random() < 0.5
        prompt = self._prompt() if rng.random() < 0.15 else []
        control = [ids[f"<|{clip.language}|>"], ids[f"<|{task}|>"]]
        control += [] if is_timed else [ids["<|notimestamps|>"]]
        text = self._text(clip, "en" if task == "translate" else clip.language, is_timed)
        read = [*prompt, ids["<|startoftranscript|>"], *control, *(target.token for target in text)]
        unasked = _Target(_IGNORED)
        spoken = _Target(control[0] if clip.segments else ids["<|nospeech|>"])
        labels = [*[unasked] * len(prompt), spoken, *[unasked] * (len(control) - 1)]
        return read, [*labels, *text, _Target(ids["<|endoftext|>"])]

    def _text(self, clip: Clip, language: str, is_timed: bool) -> list[_Target]:
        text: list[_Target] = []
        for segment in clip.segments:
            names = [f" {WORDS[language][digit]}" for digit in segment.digits]
            targets = [
                _Target(self.ids_of(name)[0], span)
                for name, span in zip(names, segment.spans, strict=True)
            ]
            begin, end = self._time(segment.start), self._time(segment.end)
            text += [begin, *targets, end] if is_timed else targets
        return text or ([_Target(self.first_time)] if is_timed else [])

    def ids_of(self, text: str) -> list[int]:
        """Returns the tokens of a text, without special tokens."""
        return self._words(text, add_special_tokens=False)["input_ids"]

    def _time(self, seconds: float) -> _Target:
        return _Target(self.first_time + round(seconds / STEP), (seconds - 0.1, seconds + 0.1))

    def _prompt(self) -> list[int]:
        """Returns a prompt of random bytes and digit names, because a prompt may contain
        anything.
        """
        rng = self._rng
        some = rng.choices(range(256), k=rng.randint(0, 6))
        names = rng.choices(WORDS[rng.choice(list(WORDS))], k=rng.randint(1, 5))
        return [self.ids["<|startofprev|>"], *some, *self.ids_of(" " + " ".join(names))]


def _looked_at(rows: Sequence[Sequence[_Target]], length: int) -> Tensor:
    """Returns `[clips, tokens, positions]` of bool: True at the positions at which a token is
    heard. A row without True allows any position.
    """
    mask = torch.zeros(len(rows), length, round(LONGEST / STEP), dtype=torch.bool)
    for at, row in enumerate(rows):
        for place, target in enumerate(row):
            if target.span:
                begin, end = (max(0, round(second / STEP)) for second in target.span)
                mask[at, place, begin : end + 1] = True
    return mask


class _Learner(nn.Module):
    """The model with two additional training objectives.

    It predicts the digits from the encoder alone (connectionist temporal classification). It also
    learns the positions that the decoder's last layer should attend to for a word or a time.
    Without these objectives, the decoder needs tens of thousands of steps to find these positions.
    """

    def __init__(self, model: WhisperForConditionalGeneration, first_time: int) -> None:
        super().__init__()
        self.model = model
        self._first_time = first_time
        # Embeddings of nearby times start out similar, and similar to the encoder's positions.
        times: Any = model.model.decoder.embed_tokens.weight[first_time:]
        with torch.no_grad():
            times.copy_(0.07 * modeling_whisper.sinusoids(*times.shape))
        self.guess = nn.Linear(model.config.d_model, 21)
        looking: Any = model.model.decoder.layers[-1].encoder_attn
        # No other implementation returns the attention weights.
        looking.config = copy.deepcopy(model.config)
        looking.config._attn_implementation = "eager"
        looking.register_forward_hook(self._look)

    def _look(self, module: Any, given: Any, output: Any) -> None:
        self._weights: Tensor = output[1]

    def hear(self, batch: common.Batch) -> Tensor:
        """Returns the loss of the encoder's prediction alone."""
        heard: Any = self.model.model.encoder(batch["input_features"])
        return self._guessed(heard.last_hidden_state, batch)

    def forward(self, batch: common.Batch) -> Tensor:
        out: Any = self.model(
            input_features=batch["input_features"], decoder_input_ids=batch["decoder_input_ids"]
        )
        guessed = self._guessed(out.encoder_last_hidden_state, batch)
        where = batch["looked_at"]
        # [clips, heads, tokens]: the share of each head's attention at the correct positions.
        right = (self._weights * where[:, None]).sum(-1)
        has_span = where.any(-1)[:, None].expand_as(right)
        looked = -right[has_span].clamp(min=1e-6).log().mean()
        return self._written(out.logits, batch["labels"]) + 0.3 * guessed + 0.5 * looked

    def _guessed(self, states: Tensor, batch: common.Batch) -> Tensor:
        guesses = self.guess(states).log_softmax(-1).transpose(0, 1)
        places = torch.full((guesses.shape[1],), guesses.shape[0])
        return nn.functional.ctc_loss(
            guesses, batch["spoken"], places, batch["lengths"], zero_infinity=True
        )

    def _written(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean cross-entropy."""
        is_target = labels != _IGNORED
        log_probabilities, targets = logits[is_target].log_softmax(-1), labels[is_target]
        is_time = targets >= self._first_time
        words = -log_probabilities[~is_time].gather(1, targets[~is_time, None]).sum()
        offsets = torch.arange(len(NEAR)) - len(NEAR) // 2
        near = targets[is_time, None] + offsets
        near = near.clamp(self._first_time, logits.shape[-1] - 1)
        times = -(log_probabilities[is_time].gather(1, near) * torch.tensor(NEAR)).sum()
        return (words + times) / len(targets)


def _batches(lessons: _Lessons, clips: Sequence[Clip]) -> Iterator[common.Batch]:
    # Half precision is sufficient and halves the memory.
    heard = torch.cat([lessons.features([clip]).half() for clip in clips])
    for part in vision.shuffled(len(clips), BATCH):
        yield lessons.batch([clips[int(at)] for at in part], heard[part].float())


def held_out(count: int, seed: int = 1) -> list[Clip]:
    """Returns clips of speakers that the training never uses."""
    rng = Random(seed)  # noqa: S311 - draws clips, no secrets
    return list(islice(speech.clips(rng, speech.voices(rng, speech.UNHEARD, 1)), count))


def written(
    model: Any, lessons: _Lessons, words: Any, clips: Sequence[Clip], **options: Any
) -> list[str]:
    """Returns the model's greedy transcript of each clip. The model detects the language."""
    transcripts: list[str] = []
    for start in range(0, len(clips), 50):
        features = lessons.features(clips[start : start + 50])
        tokens = model.generate(features, **options)
        transcripts += [
            text.strip() for text in words.batch_decode(tokens, skip_special_tokens=True)
        ]
    return transcripts


def words_right(answers: Sequence[str], wanted: Sequence[str]) -> float:
    """Returns one minus the word error rate, which is the number of word edits per expected
    word.
    """
    edits = sum(_edits(a.split(), b.split()) for a, b in zip(answers, wanted, strict=True))
    return 1 - edits / sum(len(text.split()) for text in wanted)


def _edits(left: Sequence[str], right: Sequence[str]) -> int:
    """Returns the Levenshtein distance."""
    row = list(range(len(right) + 1))
    for at, word in enumerate(left, 1):
        before, row[0] = row[0], at
        for to, other in enumerate(right, 1):
            before, row[to] = row[to], min(row[to] + 1, row[to - 1] + 1, before + (word != other))
    return row[-1]


def build(folder: Path) -> None:
    """Trains the transcriber, measures it and writes its folder."""
    rng = common.seed_everything()
    voices = speech.voices(rng, speech.SPEAKERS, TAKES)
    clips = list(islice(speech.clips(rng, voices, cut=CUT), CLIPS))
    words, hearing = tokenizer(), extractor()
    model = _model(words.get_vocab(), len(words))
    lessons = _Lessons(rng, hearing, words)
    learner: Any = _Learner(model, lessons.first_time)
    batches = _batches(lessons, clips)
    # Most of the time is spent on the encoder. The decoder learns nothing before the encoder is
    # trained.
    common.fit(learner, batches, learner.hear, steps=HEARING_STEPS, peak_rate=3e-3)
    common.fit(learner, batches, learner, steps=STEPS, peak_rate=2e-3)
    common.save(model, hearing, folder)
    words.save_pretrained(folder)
    common.write_card(folder, model, _card(_measured(model, lessons, words)), largest=LARGEST)


def _measured(model: Any, lessons: _Lessons, words: Any) -> list[tuple[str, float, int]]:
    clips = held_out(400)
    spoken, english = [clip.text() for clip in clips], [clip.text("en") for clip in clips]
    translating = {"language": "de", "task": "translate"}
    german = [at for at, clip in enumerate(clips) if clip.language == "de"]
    plain = written(model, lessons, words, clips)
    timed = written(model, lessons, words, clips, return_timestamps=True)
    translated = written(model, lessons, words, [clips[at] for at in german], **translating)
    return [
        ("words right, speakers never heard", words_right(plain, spoken), len(clips)),
        ("the same, with timestamps", words_right(timed, spoken), len(clips)),
        (
            "German in English",
            words_right(translated, [english[at] for at in german]),
            len(german),
        ),
    ]


def _card(evaluation: Sequence[tuple[str, float, int]]) -> common.Card:
    return common.Card(
        title="tiny-transcriber: spoken digits, in English and German",
        pipeline_tag="automatic-speech-recognition",
        tags=("whisper", "automatic-speech-recognition", "tiny"),
        language="[en, de]",
        summary=(
            "A Whisper with two layers of 96 dimensions on each side that writes down digits, in "
            "the language they are spoken in or in English. It finds the language, tells when "
            "each stretch of speech begins and ends, and its last layer tells when each word is "
            f"spoken. It hears {LONGEST:g} seconds at a time, in {MELS} mel bands, at {RATE:,} Hz."
        ),
        data=(
            f"{CLIPS:,} clips of one to six digits, and windows of longer speech, mixed "
            f"from renderings by espeak-ng: {len(speech.SPEAKERS)} of its speakers, each in "
            "accents of English and in German, at drawn speeds, pitches, pauses and loudnesses, "
            f"over noise. {len(speech.UNHEARD)} speakers were held out."
        ),
        evaluation=evaluation,
        example=(
            "from transformers import pipeline\n\n"
            'transcribe = pipeline("automatic-speech-recognition", "tiny-transcriber")\n'
            'transcribe("seven-three-one.wav")  # {"text": " seven three one"}'
        ),
        limits=(
            "Digits alone, by synthetic voices: any other word becomes a digit, too. Speech of "
            "people is often written down wrongly. Asked for times as well, it misses words."
        ),
        source=(
            "All speech was rendered by espeak-ng and mixed by `{build}`; no third party's "
            "recordings were used."
        ),
        bounds=f"{LONGEST:g} seconds of sound and {TARGET} tokens",
        toolkit="espeak-ng 1.51",
        repeatable="The encoder's half and the other were trained in two runs.",
    )
