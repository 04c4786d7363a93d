"""Whisper's decoding of one window: equivalent to `generate` of transformers, but with fewer
passes.

The encoder runs once per window. `generate` runs it again to detect the language, and twice to
detect silence. Finished rows leave the batch. Words are aligned after the decoding, in one pass and
row by row, while `generate` includes padding. The tokens are the same.

Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision, 2022.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from transformers.models.whisper import generation_whisper

from stoker.models.stages.recognition.network import DecoderState, Network, TorchDecoderState

STRIDE = 2
"""Number of feature frames, of 10 ms each, per position of the encoder."""
POSITION_S = 0.02
MOST_TOKENS = 256
"""Maximum number of tokens generated per window, as in transformers' pipeline."""


@dataclass(frozen=True)
class DecodingOptions:
    """Options for the transcription of windows. Windows with equal options share a batch."""

    language: int | None = None
    """Token of the language. None means that it is detected in each window."""
    task: int | None = None
    """Token of the task. None means that the model has only one task."""
    timestamps: bool = False
    words: bool = False
    """True to find the time of each token."""
    prompt: tuple[int, ...] = ()
    """Tokens of preceding text, with `<|startofprev|>` first."""
    temperature: float = 0.0
    most: int = MOST_TOKENS


@dataclass
class DecodingResult:
    """The transcript of a window."""

    tokens: list[int] = field(default_factory=list[int])
    """Tokens without the end token."""
    times: list[float] = field(default_factory=list[float])
    """Start time of each token in seconds from the window's start, if word times were requested."""
    logprobs: list[float] = field(default_factory=list[float])
    """Natural log probability of each token."""
    average: float = 0.0
    """Mean log probability, including the end token."""
    silence: float = 0.0
    """Probability that the window contains no speech."""
    is_silent: bool = False
    """True if the window is skipped as silent by the model's own thresholds."""
    temperature: float = 0.0
    language: int = -1


class WindowDecoder:
    """Decodes windows with one model's configurations."""

    def __init__(self, config: Any, own: Any) -> None:
        self._config = config
        self._own = own
        self.end: int = self._own.eos_token_id
        if isinstance(self.end, list):
            self.end = self.end[0]
        # Models without timestamps have no such token.
        self._plain: int | None = getattr(self._own, "no_timestamps_token_id", None)
        self._first = self._config.vocab_size if self._plain is None else self._plain + 1
        languages: dict[str, int] = getattr(self._own, "lang_to_id", None) or {}
        self._languages = list(languages.values())
        self._never = self._among(own.suppress_tokens)
        self._never_first = self._among(own.begin_suppress_tokens)

    def _among(self, tokens: Sequence[int] | None) -> Tensor:
        """Returns a bool tensor (vocabulary,) that marks these tokens."""
        return torch.isin(
            torch.arange(self._config.vocab_size), torch.tensor(tokens or (), dtype=torch.int64)
        )

    def __call__(
        self, network: Network, features: Tensor, frames: Tensor, options: DecodingOptions
    ) -> list[DecodingResult]:
        """Transcribes windows.

        Args:
            network: A torch network if word times are requested.
            features: (windows, mels, frames), log-mel, each window as long as the model accepts.
            frames: (windows,), int64: number of frames with sound, without padding.
            options: Options of all windows.
        """
        rows = [DecodingResult() for _ in features]
        waiting = list(range(len(rows)))
        for temperature in self._temperatures(options):
            state = network.encode(features[waiting])
            parts = self._pass(state, [rows[row] for row in waiting], options, temperature)
            if options.words:
                sound_frames = [int(frames[row]) for row in waiting]
                self._align(cast("TorchDecoderState", state), parts, sound_frames)
            failed = [
                self._take(rows[row], part, temperature)
                for row, part in zip(waiting, parts, strict=True)
            ]
            waiting = [row for row, has_failed in zip(waiting, failed, strict=True) if has_failed]
            if not waiting:
                break
        return rows

    def _temperatures(self, options: DecodingOptions) -> Sequence[float]:
        """Returns the temperatures to try in turn: the model's list, unless the request sets
        one.
        """
        listed: Any = getattr(self._own, "temperature", None)
        is_asked = options.temperature > 0 or not isinstance(listed, list | tuple)
        return (options.temperature,) if is_asked else cast("Sequence[float]", listed)

    def _take(self, row: DecodingResult, part: "_Part", temperature: float) -> bool:
        """Stores a pass in a row's result. Returns True if a higher temperature should be tried."""
        row.tokens, row.logprobs, row.times = part.tokens, part.logprobs, part.times
        row.average = part.total / max(1, part.count)
        row.temperature = temperature
        least, silence, ratio = (
            getattr(self._own, f"{name}_threshold", None)
            for name in ("logprob", "no_speech", "compression_ratio")
        )
        is_unlikely = least is not None and row.average < least
        is_quiet = silence is not None and row.silence > silence
        row.is_silent = is_quiet and (is_unlikely or least is None)
        is_loop = ratio is not None and self._ratio(part.written) > ratio
        return not row.is_silent and (is_unlikely or is_loop)

    def _ratio(self, tokens: Sequence[int]) -> float:
        """Returns the compression ratio of the tokens. Repetitive loops compress well."""
        library: Any = generation_whisper.WhisperGenerationMixin
        return library._retrieve_compression_ratio(torch.tensor(tokens), self._config.vocab_size)

    def _pass(
        self,
        state: DecoderState,
        rows: Sequence[DecodingResult],
        options: DecodingOptions,
        temperature: float,
    ) -> "list[_Part]":
        first = state.step(torch.full((len(rows), 1), self._own.decoder_start_token_id))
        for row, spoken, scores in zip(rows, self._spoken(first, options), first, strict=True):
            row.language, row.silence = spoken, self._silence(scores)
        state.restart()
        parts = [_Part(self._begin(row.language, options)) for row in rows]
        self._write(parts, state, options, temperature)
        return parts

    def _spoken(self, first: Tensor, options: DecodingOptions) -> list[int]:
        """Returns each row's language token, or -1 if the model has none."""
        if options.language is not None:
            return [options.language] * len(first)
        if not self._languages:
            return [-1] * len(first)
        likeliest = _listed(first[:, self._languages].argmax(-1))
        return [self._languages[at] for at in likeliest]

    def _silence(self, first: Tensor) -> float:
        return 0.0 if self._plain is None else float(first.softmax(-1)[self._plain - 1])

    def _begin(self, language: int, options: DecodingOptions) -> list[int]:
        """Returns the tokens before the transcript."""
        begin = [*options.prompt, int(self._own.decoder_start_token_id)]
        begin += [language] if language >= 0 else []
        begin += [options.task] if options.task is not None else []
        if not options.timestamps and self._plain is not None:
            begin.append(self._plain)
        return begin

    def _write(
        self,
        parts: "Sequence[_Part]",
        state: DecoderState,
        options: DecodingOptions,
        temperature: float,
    ) -> None:
        """Appends tokens to all parts until each has ended."""
        begin = len(parts[0].begin)
        timing: Any = options.timestamps and WhisperTimeStampLogitsProcessor(self._own, begin)
        most = min(
            options.most,
            self._own.max_new_tokens or options.most,
            self._config.max_target_positions - begin,
        )
        tokens = fed = torch.tensor([part.begin for part in parts])
        open_: list[_Part] = list(parts)
        for step in range(most):
            scores = state.step(fed)
            barred = self._never if step else self._never | self._never_first
            scores = scores.masked_fill(barred, -torch.inf)
            if timing:
                scores = timing(tokens, scores)
            chosen = _chosen(scores, temperature)
            logprobs = scores.log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
            for part, token, logprob in zip(open_, _listed(chosen), _listed(logprobs), strict=True):
                part.take(token, logprob, self.end)
            tokens = torch.cat([tokens, chosen[:, None]], 1)
            fed = chosen[:, None]
            going = [at for at, part in enumerate(open_) if not part.ended]
            if not going:
                break
            # The removal of rows copies the state of the others, so it waits until it saves time.
            if 2 * len(going) <= len(open_):
                state.keep(going)
                tokens, fed = tokens[going], fed[going]
                open_ = [open_[at] for at in going]

    def _align(
        self, state: TorchDecoderState, parts: "Sequence[_Part]", frames: Sequence[int]
    ) -> None:
        """Finds the time of each token from the decoder's attention while it reads the
        transcript.
        """
        rows = [[*part.begin, *part.written] for part in parts]
        longest = max(len(row) for row in rows)
        padded = torch.tensor([row + [self.end] * (longest - len(row)) for row in rows])
        weights = state.attention(padded, self._own.alignment_heads)
        for part, row, sound in zip(parts, weights, frames, strict=True):
            # The last token has no attention, because nothing is written after it.
            read = row[:, len(part.begin) : len(part.begin) + len(part.written) - 1]
            part.times = self._times(read[..., : max(1, sound // STRIDE)])

    def _times(self, weights: Tensor) -> list[float]:
        """Returns the start time of each token in seconds, by dynamic time warping as in
        transformers.
        """
        library: Any = generation_whisper
        if weights.shape[1] == 0:
            return [0.0]
        spread = weights.std(-2, keepdim=True, unbiased=False)
        evened = (weights - weights.mean(-2, keepdim=True)) / spread
        matrix = library._median_filter(evened, self._config.median_filter_width).mean(0)
        text, time = library._dynamic_time_warping(-matrix.cpu().double().numpy())
        times = [float(time[0]) * POSITION_S]
        times += [
            float(at) * POSITION_S
            for before, now, at in zip(text[:-1], text[1:], time[1:], strict=True)
            if now != before
        ]
        return [*times, times[-1]]


@dataclass(eq=False)
class _Part:
    """Tokens that one pass over a window writes."""

    begin: list[int]
    written: list[int] = field(default_factory=list[int])
    """Tokens including the end token, if it was reached."""
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    total: float = 0.0
    count: int = 0
    ended: bool = False
    times: list[float] = field(default_factory=list[float])

    def take(self, token: int, logprob: float, end: int) -> None:
        if self.ended:
            return
        self.written.append(token)
        self.total += logprob
        self.count += 1
        if token == end:
            self.ended = True
        else:
            self.tokens.append(token)
            self.logprobs.append(logprob)


def _listed(values: Any) -> list[Any]:
    return values.tolist()


def _chosen(scores: Tensor, temperature: float) -> Tensor:
    if temperature == 0:
        return scores.argmax(-1)
    # Sampling from NaN ends a process on a GPU. The log probability of the token stays NaN.
    return torch.multinomial((scores / temperature).softmax(-1).nan_to_num(1.0), 1)[:, 0]


class TokenSpan(NamedTuple):
    """Range of a window's tokens that form a segment, with times in frames from the window's
    start.
    """

    begin: int
    end: int
    start_frame: int
    end_frame: int


def segmented(tokens: Sequence[int], first: int, left: int) -> tuple[list[TokenSpan], int]:
    """Returns the finished segments of a window's tokens, and the number of frames that they span.

    Two consecutive timestamps separate two segments. The tokens after the last such pair are
    unfinished, unless a single timestamp ends them: then no speech follows.

    Args:
        tokens: Tokens without the end token.
        first: Token of the first timestamp.
        left: Frames of sound in the window.
    """

    def frame(at: int) -> int:
        return max(0, tokens[at] - first) * STRIDE

    times = [token >= first for token in tokens]
    pairs = [at + 1 for at in range(len(times) - 1) if times[at] and times[at + 1]]
    if not pairs:
        last = max((at for at, is_time in enumerate(times) if is_time), default=0)
        end = frame(last) if last else left
        return [TokenSpan(0, len(tokens), frame(0) if tokens else 0, end)], left
    is_complete = times[-2:] == [False, True]
    edges = [0, *pairs, *([len(tokens)] if is_complete else [])]
    spans = [
        TokenSpan(begin, end, frame(begin), frame(end - 1))
        for begin, end in itertools.pairwise(edges)
    ]
    ahead = left if is_complete else frame(pairs[-1] - 1)
    # A segment without duration would be transcribed endlessly.
    return spans, ahead if ahead > 0 else left
