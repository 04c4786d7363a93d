"""vLLM's engine in our terms. Its own are the internal ones of the version that is installed.

Imported by vLLM's child alone.
"""

import importlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.models.llm.engines.vllm.channel import Load, Ready, Submit
from stoker.models.llm.interface import Finish, Logprob, Output

BLOCK_TOKENS = 32
"""Of the cache on a CPU, where vLLM's own are of 128: prompts share whole blocks."""
STEP_TOKENS = 256
"""Most tokens of a step on a CPU, as with our own engines. GPUs keep vLLM's number."""
MAX_RUNNING = 256
MAX_ADAPTERS = 8
"""Of one step; vLLM has room for so many in each layer, and others wait."""
KEPT_ADAPTERS = 64
"""Adapters that stay in memory, the least recently used give way."""
_SEED_MASK = (1 << 64) - 1


@dataclass(eq=False)
class Answer:
    """A sequence in the engine's hands."""

    stops: frozenset[int]
    top: int
    """How many of the likeliest tokens to report in each place."""
    prompt: Sequence[int] = ()
    """Its tokens, where their log probabilities are wanted."""
    silent: bool = False
    """Whether no answer is wanted: vLLM draws at least one token."""
    matcher: Any = None
    error: Exception | None = None
    """Why no token can be drawn for it."""
    cached_reported: bool = False
    """Whether the tokens that were found computed have been reported."""


class ChildEngine:
    """vLLM's engine, and what it does not do: forms with our limits, ends without their token."""

    def __init__(self, load: Load) -> None:
        """Load the model. Raises whatever vLLM raises."""
        self._vllm, self._answers = _engine(load)
        config = self._vllm.vllm_config.model_config
        self.facts = Ready(max_length=config.max_model_len, vocabulary=config.get_vocab_size())
        self._core = self._vllm.engine_core.engine_core
        self._params: Any = importlib.import_module("vllm.sampling_params")
        self.ends: Sequence[int] = ()
        self._adapters = load.adapters
        self._added: dict[str, Any] = {}
        """Adapter → vLLM's own request for it."""

    @property
    def busy(self) -> bool:
        return bool(self._answers)

    @property
    def usage(self) -> float:
        return self._core.scheduler.kv_cache_manager.usage

    def submit(self, message: Submit, matcher: Any) -> None:
        """Raises `ValueError` for what vLLM does not take."""
        wanted = message.sampling
        stops = {*wanted.stop_token_ids, *(() if wanted.ignore_eos else self.ends)}
        most = max(1, wanted.max_tokens or 0)
        params = self._params.SamplingParams(
            max_tokens=most,
            min_tokens=min(wanted.min_tokens or 0, most),
            temperature=_or(wanted.temperature, 1.0),
            top_p=_or(wanted.top_p, 1.0),
            top_k=_or(wanted.top_k, 0),
            min_p=_or(wanted.min_p, 0.0),
            # As torch itself takes negative ones; -1 would be none to vLLM.
            seed=None if wanted.seed is None else wanted.seed & _SEED_MASK,
            frequency_penalty=wanted.frequency_penalty,
            presence_penalty=wanted.presence_penalty,
            repetition_penalty=_or(wanted.repetition_penalty, 1.0),
            logit_bias=wanted.logit_bias or None,
            allowed_token_ids=wanted.allowed_tokens or None,
            logprobs=wanted.logprobs,
            prompt_logprobs=wanted.prompt_logprobs,
            # All ends are given by their tokens.
            stop_token_ids=sorted(stops),
            ignore_eos=True,
            detokenize=False,
            output_kind=self._params.RequestOutputKind.DELTA,
            extra_args={"id": message.id},
        )
        self._answers[message.id] = Answer(
            frozenset(stops),
            wanted.logprobs or wanted.prompt_logprobs or 0,
            prompt=() if wanted.prompt_logprobs is None else message.prompt,
            silent=wanted.max_tokens == 0,
            matcher=matcher,
        )
        try:
            self._vllm.add_request(
                str(message.id),
                {"prompt_token_ids": message.prompt},
                params,
                lora_request=self._adapter(message.adapter),
            )
        except Exception:
            del self._answers[message.id]
            raise

    def _adapter(self, name: str) -> Any:
        """None where there is none. Raises `ValueError` for one that vLLM does not take."""
        if not name:
            return None
        if name not in self._added:
            kind: Any = importlib.import_module("vllm.lora.request").LoRARequest
            path = str(Path(self._adapters) / name)
            made = kind(lora_name=name, lora_int_id=len(self._added) + 1, lora_path=path)
            try:
                # In a step, a failure would be the end of all sequences.
                self._vllm.add_lora(made)
            except Exception as error:
                raise ValueError(f"the adapter cannot be loaded: {error}") from error
            self._added[name] = made
        return self._added[name]

    def abort(self, identifier: int) -> None:
        if self._answers.pop(identifier, None):
            self._vllm.abort_request([str(identifier)])

    def step(self) -> list[Output]:
        outputs: list[Output] = []
        for found in self._vllm.step():
            identifier = int(found.request_id)
            if answer := self._answers.get(identifier):
                output = _output(identifier, answer, found)
                if output.finish or output.error:
                    # Also where vLLM does not know yet that it has ended.
                    self.abort(identifier)
                outputs.append(output)
        return outputs


def _output(identifier: int, answer: Answer, found: Any) -> Output:
    """What a step gave a sequence, in our terms."""
    if answer.error:
        form = type(answer.error).__name__ == "FormError"
        return Output(identifier, [], [], error=str(answer.error), form=form)
    one = found.outputs[0]
    prompt = _scored(answer, found)
    tokens = [int(token) for token in one.token_ids]
    if one.finish_reason not in (None, "stop", "length"):
        return Output(identifier, [], [], error="The model failed while it wrote this answer.")
    if answer.silent:
        return Output(identifier, [], [], "length" if one.finish_reason else None, prompt=prompt)
    finish: Finish | None = one.finish_reason
    logprobs = [
        _logprob(token, place, answer.top)
        for token, place in zip(tokens, one.logprobs or (), strict=False)
    ]
    end: Logprob | None = None
    if finish == "stop" and tokens and tokens[-1] in answer.stops:
        tokens.pop()
        end = logprobs.pop() if logprobs else None
    elif answer.matcher and any(answer.matcher.consume(token) for token in tokens):
        finish = "stop"
    cached = 0 if answer.cached_reported else int(found.num_cached_tokens or 0)
    answer.cached_reported = True
    return Output(identifier, tokens, logprobs, finish, cached, prompt=prompt, end=end)


def _scored(answer: Answer, found: Any) -> list[Logprob]:
    """Of the prompt's tokens, once vLLM has computed all of it: the first has none."""
    prompt, answer.prompt = answer.prompt, () if found.prompt_logprobs else answer.prompt
    return [
        _logprob(token, place, answer.top)
        for token, place in zip(prompt, found.prompt_logprobs or (), strict=False)
        if place is not None
    ]


def _logprob(token: int, place: Any, top: int) -> Logprob:
    """Of vLLM's mapping of tokens: the likeliest, and the token itself where it is not of them."""
    ranked = sorted(place.items(), key=lambda pair: pair[1].rank)[:top]
    likeliest = [(int(other), float(one.logprob)) for other, one in ranked]
    return Logprob(token, float(place[token].logprob), likeliest)


def _engine(load: Load) -> tuple[Any, dict[int, Answer]]:
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    if load.device == "cpu" and not platform.is_cpu():
        raise ValueError("The vLLM that is installed here is built for GPUs.")
    if load.device == "cuda" and platform.is_cpu():
        raise ValueError("The vLLM that is installed here is built for CPUs.")
    if platform.is_cpu():
        # Compiling takes minutes and a C++ compiler; models of a CPU's size gain little by it.
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    arguments: Any = importlib.import_module("vllm.engine.arg_utils")
    engine: Any = importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine
    forms: Any = importlib.import_module("stoker.models.llm.engines.vllm.logits_processor")
    answers: dict[int, Answer] = {}
    made = engine.from_engine_args(
        arguments.EngineArgs(
            model=load.folder,
            # No pickles, and no code that a model brings.
            load_format="safetensors",
            trust_remote_code=False,
            # Texts are the replica's business, and so are the model's own ways of drawing.
            skip_tokenizer_init=True,
            generation_config="vllm",
            # As long as the model goes, or as the cache has room for.
            max_model_len=-1,
            enable_prefix_caching=True,
            # Forms need each token before the next step begins.
            async_scheduling=False,
            logits_processors=[forms.processor(answers)],
            seed=secrets.randbelow(1 << 31),
            disable_log_stats=True,
            **_with_adapters(load),
            **(_on_cpu(load) if platform.is_cpu() else _on_gpu(load)),
        )
    )
    return made, answers


def _with_adapters(load: Load) -> dict[str, Any]:
    if not load.adapters:
        return {}
    return {
        "enable_lora": True,
        "max_loras": MAX_ADAPTERS,
        "max_cpu_loras": KEPT_ADAPTERS,
        "max_lora_rank": load.max_rank,
    }


def _on_cpu(load: Load) -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")
    own = "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
    return {
        "dtype": own if load.dtype == "auto" else load.dtype,
        "enforce_eager": True,
        "kv_cache_memory_bytes": load.cache_bytes,
        "block_size": BLOCK_TOKENS,
        "max_num_seqs": MAX_RUNNING,
        "max_num_batched_tokens": STEP_TOKENS,
    }


def _on_gpu(load: Load) -> dict[str, Any]:
    return {"dtype": load.dtype, "gpu_memory_utilization": load.gpu_share}


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
