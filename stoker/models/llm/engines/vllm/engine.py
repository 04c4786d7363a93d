"""Wraps vLLM's engine in Stoker's types. It uses internal APIs of the installed vLLM version.

Imported only by vLLM's child process.
"""

import importlib
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stoker.models.llm.engines.vllm import sleep
from stoker.models.llm.engines.vllm.channel import LoadModel, Ready, Submit
from stoker.models.llm.interface import Finish, Logprob, Output

log = logging.getLogger(__name__)

BLOCK_TOKENS = 32
"""Tokens per block of the cache on a CPU. vLLM's default is 128; prompts share only whole
blocks.
"""
STEP_TOKENS = 256
"""Maximum tokens per step on a CPU, as in Stoker's own engines. GPUs use vLLM's number."""
MAX_RUNNING = 256
MAX_ADAPTERS = 8
"""Maximum adapters per step. vLLM reserves room for that number in each layer; other adapters
wait.
"""
KEPT_ADAPTERS = 64
"""Maximum adapters in memory. The least recently used are evicted."""
_SEED_MASK = (1 << 64) - 1


class FormsUnsupportedError(ValueError):
    """The form of an answer cannot be enforced. The message is meant for the client."""

    def __init__(self) -> None:
        super().__init__(
            "The installed vLLM cannot enforce the form of an answer on several GPUs. Send the "
            "request without a form, or set the deployment's 'devices' to 1."
        )


@dataclass(eq=False)
class EngineSequence:
    """Sequence that the engine continues."""

    stops: frozenset[int]
    top: int
    """Number of likeliest tokens to report at each position."""
    prompt: Sequence[int] = ()
    """Tokens of the prompt, if their log probabilities are requested."""
    silent: bool = False
    """True if no answer is requested. vLLM draws at least one token anyway."""
    matcher: Any = None
    error: Exception | None = None
    """Reason why no token can be drawn for it."""
    cached_reported: bool = False
    """True if the number of cached tokens has been reported."""


class ChildEngine:
    """vLLM's engine with features that it lacks: forms with Stoker's limits, and answers without
    their end token.
    """

    def __init__(self, load: LoadModel) -> None:
        """Loads the model. Raises any error of vLLM."""
        if load.sleeps and not sleep.is_supported():
            load = msgspec.structs.replace(load, sleeps=False)
        self._devices = load.devices
        self._vllm, self._answers = _engine(load)
        config = self._vllm.vllm_config.model_config
        self.facts = Ready(
            max_length=config.max_model_len,
            vocabulary=config.get_vocab_size(),
            sleep_bytes=self._sleep_bytes() if load.sleeps else None,
        )
        self._core = self._vllm.engine_core.engine_core
        self._params: Any = importlib.import_module("vllm.sampling_params")
        self.ends: Sequence[int] = ()
        self._adapters = load.adapters
        self._has_forms = load.devices == 1 or self._prepare_forms()
        self._added: dict[str, Any] = {}
        """Maps an adapter to vLLM's request for it."""

    @property
    def busy(self) -> bool:
        return bool(self._answers)

    @property
    def usage(self) -> float:
        return self._core.scheduler.kv_cache_manager.usage

    def submit(self, message: Submit, matcher: Any) -> None:
        """Submits a sequence. Raises `ValueError` if vLLM rejects it."""
        if matcher and not self._has_forms:
            raise FormsUnsupportedError
        sampling = message.sampling
        stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.ends)}
        most = max(1, sampling.max_tokens or 0)
        params = self._params.SamplingParams(
            max_tokens=most,
            min_tokens=min(sampling.min_tokens or 0, most),
            temperature=_or(sampling.temperature, 1.0),
            top_p=_or(sampling.top_p, 1.0),
            top_k=_or(sampling.top_k, 0),
            min_p=_or(sampling.min_p, 0.0),
            # torch accepts negative seeds. To vLLM, -1 means no seed.
            seed=None if sampling.seed is None else sampling.seed & _SEED_MASK,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=_or(sampling.repetition_penalty, 1.0),
            logit_bias=sampling.logit_bias or None,
            allowed_token_ids=sampling.allowed_tokens or None,
            logprobs=sampling.logprobs,
            prompt_logprobs=sampling.prompt_logprobs,
            # All ends are passed as tokens.
            stop_token_ids=sorted(stops),
            ignore_eos=True,
            detokenize=False,
            output_kind=self._params.RequestOutputKind.DELTA,
            extra_args={"id": message.id},
        )
        self._answers[message.id] = EngineSequence(
            frozenset(stops),
            sampling.logprobs or sampling.prompt_logprobs or 0,
            prompt=() if sampling.prompt_logprobs is None else message.prompt,
            silent=sampling.max_tokens == 0,
            matcher=matcher,
        )
        try:
            self._vllm.add_request(
                str(message.id),
                {"prompt_token_ids": message.prompt},
                params,
                lora_request=self._adapter(message.adapter),
                priority=message.priority,
            )
        except Exception:
            del self._answers[message.id]
            raise
        if matcher and self._devices > 1:
            self._attach_form(message.id)

    def _prepare_forms(self) -> bool:
        """Prepares forms on several GPUs. Returns False if the installed vLLM does not support
        them.
        """
        try:
            _form_masks().prepare(self._core, self.facts.vocabulary)
        except Exception:
            log.exception("forms cannot be enforced on several GPUs")
            return False
        return True

    def _attach_form(self, identifier: int) -> None:
        try:
            _form_masks().attach(self._core, identifier, self._answers[identifier])
        except Exception as error:
            log.exception("the form of an answer cannot be enforced on several GPUs")
            self.abort(identifier)
            raise FormsUnsupportedError from error

    def _adapter(self, name: str) -> Any:
        """Returns the adapter, or None for an empty name. Raises `ValueError` if vLLM rejects
        it.
        """
        if not name:
            return None
        if name not in self._added:
            kind: Any = importlib.import_module("vllm.lora.request").LoRARequest
            path = str(Path(self._adapters) / name)
            made = kind(lora_name=name, lora_int_id=len(self._added) + 1, lora_path=path)
            try:
                # During a step, a failure would end all sequences.
                self._vllm.add_lora(made)
            except Exception as error:
                raise ValueError(f"the adapter cannot be loaded: {error}") from error
            self._added[name] = made
        return self._added[name]

    def sleep(self) -> int:
        """Moves the weights to main memory and frees the cache. Returns `Moved.held_bytes`."""
        if self.busy:
            raise RuntimeError("sequences are running")
        # The prefix cache is emptied, because its blocks lose their content.
        self._vllm.sleep(level=1)
        return max(sleep.run_in_processes(self._vllm, sleep.held_bytes, self._devices))

    def wake_up(self) -> int:
        """Moves the weights back to the GPU. Returns 0, because the model is awake."""
        self._vllm.wake_up()
        return max(sleep.run_in_processes(self._vllm, sleep.free_backup, self._devices))

    def _sleep_bytes(self) -> int | None:
        """Returns `Ready.sleep_bytes`. None if it cannot be measured, so that the model never
        sleeps.
        """
        try:
            return sum(sleep.run_in_processes(self._vllm, sleep.backup_bytes, self._devices))
        except Exception:
            log.exception("memory for sleep could not be measured; the model will not sleep")
            return None

    def abort(self, identifier: int) -> None:
        if self._answers.pop(identifier, None):
            self._vllm.abort_request([str(identifier)])

    def step(self) -> list[Output]:
        outputs: list[Output] = []
        for result in self._vllm.step():
            identifier = int(result.request_id)
            if answer := self._answers.get(identifier):
                output = _output(identifier, answer, result)
                if output.finish or output.error:
                    # Also needed if vLLM does not know yet that the sequence has ended.
                    self.abort(identifier)
                outputs.append(output)
        return outputs


def _output(identifier: int, answer: EngineSequence, found: Any) -> Output:
    """Returns a step's result for one sequence."""
    if answer.error:
        form = type(answer.error).__name__ == "FormError"
        return Output(identifier, [], [], error=str(answer.error), form=form)
    completion = found.outputs[0]
    prompt = _scored(answer, found)
    tokens = [int(token) for token in completion.token_ids]
    if completion.finish_reason not in (None, "stop", "length"):
        return Output(identifier, [], [], error="The model failed while it wrote this answer.")
    if answer.silent:
        return Output(
            identifier, [], [], "length" if completion.finish_reason else None, prompt=prompt
        )
    finish: Finish | None = completion.finish_reason
    logprobs = [
        _logprob(token, place, answer.top)
        for token, place in zip(tokens, completion.logprobs or (), strict=False)
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


def _scored(answer: EngineSequence, found: Any) -> list[Logprob]:
    """Returns the log probabilities of the prompt's tokens once vLLM has computed all of it. The
    first token has none.
    """
    prompt, answer.prompt = answer.prompt, () if found.prompt_logprobs else answer.prompt
    return [
        _logprob(token, place, answer.top)
        for token, place in zip(prompt, found.prompt_logprobs or (), strict=False)
        if place is not None
    ]


def _logprob(token: int, place: Any, top: int) -> Logprob:
    """Converts vLLM's mapping of tokens: the token itself, and the likeliest tokens at its
    position.
    """
    ranked = sorted(place.items(), key=lambda pair: pair[1].rank)[:top]
    likeliest = [(int(other), float(entry.logprob)) for other, entry in ranked]
    return Logprob(token, float(place[token].logprob), likeliest)


def _engine(load: LoadModel) -> tuple[Any, dict[int, EngineSequence]]:
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    if load.device == "cpu" and not platform.is_cpu():
        raise ValueError("The installed vLLM is built for GPUs.")
    if load.device == "cuda" and platform.is_cpu():
        raise ValueError("The installed vLLM is built for CPUs.")
    if platform.is_cpu():
        # Compilation takes minutes and needs a C++ compiler. Models of a CPU's size gain little
        # from it.
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    arguments: Any = importlib.import_module("vllm.engine.arg_utils")
    engine: Any = importlib.import_module("vllm.v1.engine.llm_engine").LLMEngine
    answers: dict[int, EngineSequence] = {}
    made = engine.from_engine_args(
        arguments.EngineArgs(
            model=load.folder,
            # Excludes pickles and code from the model's folder.
            load_format="safetensors",
            trust_remote_code=False,
            # The replica handles texts and the model's own sampling defaults.
            skip_tokenizer_init=True,
            generation_config="vllm",
            # As long as the model supports or the cache has room for.
            max_model_len=-1,
            enable_prefix_caching=True,
            scheduling_policy="priority",
            # Forms need each token before the next step begins.
            async_scheduling=False,
            seed=secrets.randbelow(1 << 31),
            disable_log_stats=True,
            **_with_forms(load, answers),
            **_with_adapters(load),
            **(_on_cpu(load) if platform.is_cpu() else _on_gpu(load)),
        )
    )
    return made, answers


def _with_forms(load: LoadModel, answers: dict[int, EngineSequence]) -> dict[str, Any]:
    if load.devices > 1:
        # The logits are in other processes, which do not see the answers. See `form_masks`.
        return {}
    forms: Any = importlib.import_module("stoker.models.llm.engines.vllm.logits_processor")
    return {"logits_processors": [forms.processor(answers)]}


def _form_masks() -> Any:
    # The module imports torch, which must not happen before vLLM has detected its platform.
    return importlib.import_module("stoker.models.llm.engines.vllm.form_masks")


def _with_adapters(load: LoadModel) -> dict[str, Any]:
    if not load.adapters:
        return {}
    return {
        "enable_lora": True,
        "max_loras": MAX_ADAPTERS,
        "max_cpu_loras": KEPT_ADAPTERS,
        "max_lora_rank": load.max_rank,
    }


def _on_cpu(load: LoadModel) -> dict[str, Any]:
    if load.devices > 1 or load.quantization or load.kv_cache_dtype != "auto":
        raise ValueError("'devices', 'quantization' and 'kv_cache_dtype' need a GPU.")
    torch: Any = importlib.import_module("torch")
    dtype = "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"
    return {
        "dtype": dtype if load.dtype == "auto" else load.dtype,
        "enforce_eager": True,
        "kv_cache_memory_bytes": load.cache_bytes,
        "block_size": BLOCK_TOKENS,
        "max_num_seqs": MAX_RUNNING,
        "max_num_batched_tokens": STEP_TOKENS,
    }


def _on_gpu(load: LoadModel) -> dict[str, Any]:
    return {
        "dtype": load.dtype,
        "gpu_memory_utilization": load.gpu_share,
        "quantization": load.quantization or None,
        "kv_cache_dtype": load.kv_cache_dtype,
        "enable_sleep_mode": load.sleeps,
        "tensor_parallel_size": load.devices,
        # With several devices, each has a process. They exchange data through shared memory.
        "distributed_executor_backend": "mp" if load.devices > 1 else None,
    }


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
