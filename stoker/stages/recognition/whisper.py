"""Whisper and its kin: many languages, translation into English, segments and words with times."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from stoker.stages.base import Sample
from stoker.stages.recognition.base import RecognitionStages, refuse, whole
from stoker.stages.recognition.joining import WhisperJoining
from stoker.stages.recognition.transcripts import Segment, Transcript, Word

if TYPE_CHECKING:
    import torch

    from stoker.stages.recognition.decoder import DecodingOptions, DecodingResult
    from stoker.stages.recognition.openvino_network import WhisperSteps

_PROBE_TOKENS = 16
"""Enough for the encoder not to hide what batches gain."""
_PROBED_S = 12.0
_FRAMES_A_SECOND = 100


class WhisperStages(RecognitionStages):
    """Windows of 30 seconds, or what the model's configuration says, decoded greedily."""

    takes = ("language", "prompt", "temperature", "logprobs", "words", "translate")

    def attach(self, model: Any) -> None:
        from stoker.stages.recognition.decoder import Decoder

        super().attach(model)
        own = model.generation_config
        self._decoder = Decoder(model.config, own)
        self._own: Any = own
        languages: dict[str, int] = getattr(own, "lang_to_id", None) or {}
        # The many of one that knows English only are what its tokenizer was made of.
        is_multilingual = getattr(own, "is_multilingual", True)
        self._languages = languages if is_multilingual else {}
        tasks: dict[str, int] = getattr(own, "task_to_id", None) or {}
        self._tasks = tasks if self._languages else {}

    @property
    def window_s(self) -> float:
        return float(self._parts["feature_extractor"].chunk_length)

    @property
    def probed_s(self) -> float:
        return min(_PROBED_S, self.window_s)

    def call(self, parameters: Mapping[str, Any]) -> "DecodingOptions":
        from stoker.stages.recognition.decoder import DecodingOptions

        task = parameters.get("task", "transcribe")
        if task not in self._tasks and task != "transcribe":
            refuse("model", "This model does not translate: it knows one language only.")
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

    def _language(self, name: str | None) -> int | None:
        """The token of a language, given by its code or its English name."""
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        if name is None:
            return None
        if not self._languages:
            refuse("language", "This model knows one language only: leave 'language' out.")
        code = TO_LANGUAGE_CODE.get(name.lower(), name.lower())
        if f"<|{code}|>" not in self._languages:
            known = ", ".join(sorted(token.strip("<|>") for token in self._languages))
            refuse("language", f"This model does not know the language; it knows {known}.")
        return self._languages[f"<|{code}|>"]

    def _prompt(self, text: str | None) -> tuple[int, ...]:
        """The last tokens of the text, as many as leave room for a transcript."""
        if not text or not text.strip():
            return ()
        try:
            tokens: list[int] = self._parts["tokenizer"].get_prompt_ids(text).tolist()
        except ValueError:
            refuse("prompt", "'prompt' must not hold the model's special tokens.")
        most = self.config.max_target_positions // 2 - 1
        return (tokens[0], *tokens[1:][-(most - 1) :])

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        import torch

        from stoker.stages.recognition.network import TorchNetwork

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
            "average": torch.tensor([_average(row) for row in rows]),
            "silence": torch.tensor([row.silence for row in rows]),
            "language": torch.tensor([row.language for row in rows]),
        }

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        return super().counts(output) | {"output_tokens": int(output["count"][0])}

    @property
    def steps(self) -> "WhisperSteps":
        from stoker.stages.recognition.openvino_network import WhisperSteps

        return WhisperSteps(self.config)

    def probe(self, length: int, number: int = 0) -> Sample | None:
        from stoker.stages.recognition.decoder import DecodingOptions

        sample = super().probe(length, number)
        if sample is not None:
            languages = list(self._languages.values())
            sample.call = DecodingOptions(
                language=languages[0] if languages else None, most=_PROBE_TOKENS
            )
        return sample

    def joining(self, parameters: Mapping[str, Any]) -> WhisperJoining:
        first = self._first_timestamp
        return WhisperJoining(
            self._parts["tokenizer"], self.config.vocab_size if first is None else first
        )

    def transcript(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Transcript:
        is_timed = bool(parameters.get("timed"))
        knows_times = self._first_timestamp is not None
        found = self._read(
            outputs, **{"return_timestamps": True} if is_timed and knows_times else {}
        )
        transcript = Transcript(
            text=found["text"].strip(),
            language=self._name(int(outputs[0]["language"][0])),
            duration=outputs[0]["sound_s"],
            output_tokens=sum(int(output["count"][0]) for output in outputs),
        )
        if is_timed:
            transcript["segments"] = (
                self._segments(found["chunks"], outputs)
                if knows_times
                else whole(found["text"], outputs)
            )
        if parameters.get("words"):
            chunks = self._read(outputs, return_timestamps="word")["chunks"]
            transcript["words"] = _words(chunks, outputs[0]["sound_s"])
        if parameters.get("logprobs"):
            joining = self.joining(parameters)
            parts = [*[joining.add(output) for output in outputs], joining.end()]
            transcript["logprobs"] = [one for part in parts for one in part.logprobs]
        return transcript

    def _read(self, outputs: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        read: list[dict[str, Any]] = []
        for output in outputs:
            count = int(output["count"][0])
            one = {"tokens": output["tokens"][:, :count]}
            if options.get("return_timestamps") == "word":
                one["token_timestamps"] = output["times"][:, :count]
            read.append(one | ({"stride": output["stride"]} if "stride" in output else {}))
        return self.read_by_pipeline(read, **options)

    def _segments(
        self, chunks: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]
    ) -> list[Segment]:
        """Of a stretch that the model did not end, the end of the sound, and so at the start."""
        segments: list[Segment] = []
        for chunk in chunks:
            start, end = chunk["timestamp"]
            start = (segments[-1]["end"] if segments else 0.0) if start is None else start
            end = outputs[0]["sound_s"] if end is None else end
            window = _window_at((start + end) / 2, outputs)
            tokens = self._parts["tokenizer"](chunk["text"], add_special_tokens=False)
            segments.append(
                Segment(
                    start=start,
                    end=max(start, end),
                    text=chunk["text"],
                    tokens=tokens["input_ids"],
                    seek=round(window["start_s"] * _FRAMES_A_SECOND),
                    avg_logprob=float(window["average"][0]),
                    no_speech_prob=float(window["silence"][0]),
                )
            )
        return segments

    def _name(self, token: int) -> str:
        from transformers.models.whisper.tokenization_whisper import LANGUAGES

        code = next((name for name, one in self._languages.items() if one == token), "<|en|>")
        return LANGUAGES.get(code.strip("<|>"), "")


def _average(row: "DecodingResult") -> float:
    return row.total / max(1, row.count)


def _padded(rows: Sequence[Sequence[float]], fill: float) -> "torch.Tensor":
    """(rows, longest)."""
    import torch

    longest = max(1, *(len(row) for row in rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])


def _window_at(second: float, outputs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The last window that has begun by then."""
    begun = [output for output in outputs if output["start_s"] <= second]
    return (begun or outputs)[-1]


def _words(chunks: Sequence[Mapping[str, Any]], seconds: float) -> list[Word]:
    """The pipeline's, without the spaces before words, and none beyond the sound."""
    return [
        Word(
            word=chunk["text"].strip(),
            start=min(chunk["timestamp"][0], seconds),
            end=min(chunk["timestamp"][1], seconds),
        )
        for chunk in chunks
    ]
