"""Whisper and similar models: many languages, translation into English, segments and words with
times.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from stoker.models.stages.base import Sample
from stoker.models.stages.recognition.base import RecognitionStages, refuse, segment
from stoker.models.stages.recognition.joining import WhisperJoining
from stoker.models.stages.recognition.silences import Silences, Span
from stoker.models.stages.recognition.transcripts import Segment, Transcript, Word
from stoker.models.stages.recognition.windows import Stretch

if TYPE_CHECKING:
    import torch

    from stoker.media.audio import Samples
    from stoker.models.stages.recognition.decoder import DecodingOptions
    from stoker.models.stages.recognition.openvino_network import WhisperSteps

_PROBE_TOKENS = 16
"""Number of generated tokens in a probe. It is small, so that the encoder does not hide the gain of
batches.
"""
_PROBED_S = 12.0
_BLOCK_S = 60
"""Length in seconds of the blocks in which features of long recordings are computed."""
_CONDITIONED = 0.5
"""A window is conditioned on previous text only if its temperature is below this."""


class WhisperStages(RecognitionStages):
    """Stages of Whisper. Windows have 30 seconds, or the length in the model's configuration.

    The windows of a stretch are transcribed in sequence, as in `generate` of transformers.
    Stretches share batches. The first window detects the language of all stretches.
    """

    takes = ("language", "prompt", "temperature", "logprobs", "words", "translate")

    def attach(self, model: Any) -> None:
        from stoker.models.stages.recognition.decoder import WindowDecoder

        super().attach(model)
        generation_config = model.generation_config
        self._decoder = WindowDecoder(model.config, generation_config)
        self._own: Any = generation_config
        languages: dict[str, int] = getattr(generation_config, "lang_to_id", None) or {}
        # English-only models list the languages of their tokenizer's origin, which they do not
        # know.
        is_multilingual = getattr(generation_config, "is_multilingual", True)
        self._languages = languages if is_multilingual else {}
        tasks: dict[str, int] = getattr(generation_config, "task_to_id", None) or {}
        self._tasks = tasks if self._languages else {}
        self._specials = set(self._parts["tokenizer"].all_special_ids)

    @property
    def window_s(self) -> float:
        return float(self._parts["feature_extractor"].chunk_length)

    @property
    def probed_s(self) -> float:
        return min(_PROBED_S, self.window_s)

    def call(self, parameters: Mapping[str, Any]) -> "DecodingOptions":
        from stoker.models.stages.recognition.decoder import DecodingOptions

        task = parameters.get("task", "transcribe")
        if task not in self._tasks and task != "transcribe":
            refuse("model", "This model does not translate: it supports only one language.")
        is_timed = bool(parameters.get("timed")) and self._first_timestamp is not None
        if parameters.get("words") and not (is_timed and self._aligning):
            refuse("timestamp_granularities", f"This model {self.OPTIONAL['words']}.")
        return DecodingOptions(
            language=self._language(parameters.get("language")),
            task=self._tasks.get(task),
            timestamps=is_timed,
            words=bool(parameters.get("words")),
            prompt=self._prompt(parameters.get("prompt")),
            temperature=float(parameters.get("temperature") or 0.0),
        )

    @property
    def _aligning(self) -> Any:
        return getattr(self._own, "alignment_heads", None)

    @property
    def _first_timestamp(self) -> int | None:
        plain: int | None = getattr(self._own, "no_timestamps_token_id", None)
        return None if plain is None else plain + 1

    @property
    def _first(self) -> int:
        """Token of the first timestamp. For models without timestamps, a token above the
        vocabulary.
        """
        first = self._first_timestamp
        return self.config.vocab_size if first is None else first

    def _language(self, name: str | None) -> int | None:
        """Returns the token of a language by its code or its English name."""
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        if name is None:
            return None
        if not self._languages:
            refuse("language", "This model supports only one language: leave 'language' out.")
        code = TO_LANGUAGE_CODE.get(name.lower(), name.lower())
        if f"<|{code}|>" not in self._languages:
            known = ", ".join(sorted(token.strip("<|>") for token in self._languages))
            refuse("language", f"This model does not support the language; it supports {known}.")
        return self._languages[f"<|{code}|>"]

    def _prompt(self, text: str | None) -> tuple[int, ...]:
        """Returns the last tokens of the text that leave room for a transcript."""
        if not text or not text.strip():
            return ()
        try:
            tokens: list[int] = self._parts["tokenizer"].get_prompt_ids(text).tolist()
        except ValueError:
            refuse("prompt", "'prompt' must not contain the model's special tokens.")
        most = self.config.max_target_positions // 2 - 1
        return (tokens[0], *tokens[1:][-(most - 1) :])

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        import torch

        from stoker.models.stages.recognition.network import TorchNetwork

        network = TorchNetwork(model) if isinstance(model, torch.nn.Module) else model
        frames = batch["attention_mask"].sum(-1)
        rows = self._decoder(
            network, batch["input_features"], frames, cast("DecodingOptions", call)
        )
        return {
            "tokens": _padded([row.tokens for row in rows], self._decoder.end),
            "logprobs": _padded([row.logprobs for row in rows], 0.0),
            "times": _padded([row.times for row in rows], 0.0),
            "count": torch.tensor([len(row.tokens) for row in rows]),
            "average": torch.tensor([row.average for row in rows]),
            "silence": torch.tensor([row.silence for row in rows]),
            "is_silent": torch.tensor([row.is_silent for row in rows]),
            "temperature": torch.tensor([row.temperature for row in rows]),
            "language": torch.tensor([row.language for row in rows]),
        }

    def windows(
        self, sound: "Samples", span: Span, silences: Silences, call: Hashable, *, is_cut: bool
    ) -> list[Sample]:
        options = cast("DecodingOptions", call)
        if is_cut and self._first_timestamp is not None:
            options = replace(options, timestamps=True)
        size = self._parts["feature_extractor"].nb_max_frames
        features, frames = self._features(sound[span.begin : span.end])
        if not options.timestamps:
            # Without timestamps, the transcribed part of a window is unknown, so the whole window
            # counts.
            frames = -(-frames // size) * size
        stretch = Stretch(
            features=features,
            start_s=span.begin / silences.rate,
            frames=frames,
            size=size,
            first=self._first,
            silences=silences,
        )
        sample = self._next(stretch, options)
        sample.is_held = bool(span.begin) and options.language is None and bool(self._languages)
        return [sample]

    def _next(self, stretch: Stretch, options: "DecodingOptions") -> Sample:
        extras = {"stretch": stretch, "options": options}
        return Sample(dict(stretch.window()), extras, call=options)

    def _features(self, sound: "Samples") -> "tuple[torch.Tensor, int]":
        """Returns log-mel features (mels, frames), and the number of frames with sound.

        Short sounds are padded to a window. Features of longer sounds are not padded. They are
        computed in blocks, because a spectrum needs five times their memory.
        """
        import torch

        extractor = self._parts["feature_extractor"]
        options: dict[str, Any] = {"sampling_rate": extractor.sampling_rate, "return_tensors": "pt"}
        if len(sound) <= extractor.n_samples:
            extracted = extractor(sound, **options, return_attention_mask=True)
            return extracted["input_features"][0], int(extracted["attention_mask"].sum())
        hop: int = extractor.hop_length
        context, size = extractor.n_fft // hop + 1, _BLOCK_S * extractor.sampling_rate // hop
        frames = len(sound) // hop
        blocks: list[torch.Tensor] = []
        for begin in range(0, frames, size):
            before, end = min(begin, context), min(begin + size, frames)
            part = sound[(begin - before) * hop : (end + context) * hop]
            extracted = extractor(part, **options, truncation=False, padding="longest")
            block = extracted["input_features"][0][:, before : before + end - begin]
            blocks.append(block)
        features = torch.cat(blocks, 1)
        # The extractor clips values 80 dB below the loudest of a block. This clips relative to all
        # blocks.
        return features.clamp(min=float(features.max()) - 2.0), frames

    def following(self, output: Mapping[str, Any]) -> Sample | None:
        stretch = _heard(output)
        if stretch.is_done:
            return None
        options: DecodingOptions = output["options"]
        language = stretch.windows[0].language
        options = replace(options, language=language if language >= 0 else None)
        sample = self._next(stretch, options)
        shared_extras = {name: output[name] for name in self.shared if name in output}
        sample.extras |= shared_extras
        if getattr(self._own, "condition_on_prev_tokens", None):
            sample.call = self._conditioned(stretch, options)
        return sample

    def _conditioned(self, stretch: Stretch, options: "DecodingOptions") -> "DecodingOptions":
        """Returns options with the text so far as prompt, limited to the available room."""
        if stretch.windows[-1].temperature >= _CONDITIONED:
            return options
        tokens = [
            *options.prompt[1:],
            *(token for _, part in stretch.each() for token in part.tokens),
        ]
        most = self.config.max_target_positions // 2 - 1
        return replace(options, prompt=(self._own.prev_sot_token_id, *tokens[-most:]))

    def released(self, sample: Sample, first: Mapping[str, Any]) -> Sample:
        options = replace(sample.extras["options"], language=int(first["language"][0]))
        extras = sample.extras | {"options": options}
        return replace(sample, extras=extras, call=options)

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        return super().counts(output) | {"output_tokens": _tokens([output])}

    @property
    def steps(self) -> "WhisperSteps":
        from stoker.models.stages.recognition.openvino_network import WhisperSteps

        return WhisperSteps(self.config)

    def probe(self, length: int, number: int = 0) -> Sample | None:
        from stoker.models.stages.recognition.decoder import DecodingOptions

        sample = super().probe(length, number)
        if sample is not None:
            languages = list(self._languages.values())
            sample.call = DecodingOptions(
                language=languages[0] if languages else None, most=_PROBE_TOKENS
            )
        return sample

    def joining(self, parameters: Mapping[str, Any]) -> WhisperJoining:
        return WhisperJoining(self._parts["tokenizer"], self._is_text, _heard)

    def transcript(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Transcript:
        stretches = [_heard(output) for output in outputs]
        joining = self.joining(parameters)
        parts = [joining.add(output) for output in outputs]
        parts.append(joining.end())
        transcript = Transcript(
            text=self._text(outputs[0]) or "".join(part.text for part in parts).strip(),
            language=self._name(int(outputs[0]["language"][0])),
            duration=outputs[0]["sound_s"],
            sound_s=outputs[0]["sound_s"],
            output_tokens=_tokens(outputs),
        )
        if parameters.get("timed"):
            transcript["segments"] = (
                self._segments(stretches)
                if self._first_timestamp is not None
                else [segment(transcript["text"], 0.0, outputs[0]["sound_s"])]
            )
        if parameters.get("words"):
            transcript["words"] = self._words(stretches, transcript["language"])
        if parameters.get("logprobs"):
            transcript["logprobs"] = [logprob for part in parts for logprob in part.logprobs]
        return transcript

    def _text(self, output: Mapping[str, Any]) -> str:
        """Returns the text of an output without timestamps, as transformers' pipeline reads it."""
        import torch

        if output["options"].timestamps:
            return ""
        tokens = [token for _, heard in _heard(output).each() for token in heard.tokens]
        result = self.read_by_pipeline([{"tokens": torch.tensor([tokens], dtype=torch.int64)}])
        return result["text"].strip()

    def _segments(self, stretches: Sequence[Stretch]) -> list[Segment]:
        decode = self._parts["tokenizer"].decode
        segments: list[Segment] = []
        for stretch in stretches:
            for window, heard in stretch.each():
                text = decode([token for token in heard.tokens if self._is_text(token)])
                if not text.strip():
                    continue
                start, end = stretch.silences.snapped(heard.start, heard.end)
                segments.append(
                    Segment(
                        start=start,
                        end=end,
                        text=text,
                        tokens=list(heard.tokens),
                        seek=window.seek,
                        avg_logprob=window.average,
                        no_speech_prob=window.silence,
                        temperature=window.temperature,
                    )
                )
        return segments

    def _is_text(self, token: int) -> bool:
        return token < self._first and token not in self._specials

    def _words(self, stretches: Sequence[Stretch], language: str) -> list[Word]:
        from transformers.models.whisper import tokenization_whisper

        library: Any = tokenization_whisper
        words: list[Word] = []
        silences = stretches[0].silences
        for _, heard in (segment_pair for stretch in stretches for segment_pair in stretch.each()):
            times = zip([heard.before, *heard.times[:-1]], heard.times, strict=True)
            spoken = [
                (token, time)
                for token, time in zip(heard.tokens, times, strict=True)
                if self._is_text(token)
            ]
            if not spoken:
                continue
            timed_words = library._collate_word_timestamps(
                self._parts["tokenizer"], *map(list, zip(*spoken, strict=True)), language, False
            )
            for word in timed_words:
                start, end = silences.snapped(*word["timestamp"])
                words.append(Word(word=word["text"].strip(), start=start, end=end))
        return words

    def _name(self, token: int) -> str:
        from transformers.models.whisper.tokenization_whisper import LANGUAGES

        code = next(
            (name for name, token_id in self._languages.items() if token_id == token), "<|en|>"
        )
        return LANGUAGES.get(code.strip("<|>"), "")


def _heard(output: Mapping[str, Any]) -> Stretch:
    """Returns the stretch after an output."""
    stretch: Stretch = output["stretch"]
    return stretch.heard(output)


def _tokens(outputs: Sequence[Mapping[str, Any]]) -> int:
    return sum(window.tokens for output in outputs for window in _heard(output).windows)


def _padded(rows: Sequence[Sequence[float]], fill: float) -> "torch.Tensor":
    """Returns a tensor (rows, longest)."""
    import torch

    longest = max(1, *(len(row) for row in rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
