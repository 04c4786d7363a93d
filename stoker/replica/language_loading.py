"""Loads a language model: the converted one where there is one, else with transformers."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import torch

from stoker.chat.prompts.pictures import architecture
from stoker.chat.prompts.prompts import Prompts
from stoker.engines.interface import Progress
from stoker.engines.torch import device_of, dtype_of
from stoker.llm import batch_invariance
from stoker.llm.checkpoint import load_tokenizer
from stoker.llm.engines import openvino as openvino_engine
from stoker.llm.engines import torch as torch_engine
from stoker.llm.engines.vllm.channel import Load
from stoker.llm.engines.vllm.model import Child, VllmModel
from stoker.llm.model_types import IMAGE_TEXT_TO_TEXT
from stoker.llm.scheduler import Runner, Scheduler
from stoker.replica.language_worker import LanguageWorker
from stoker.wire.flight import FlightRecord
from stoker.wire.protocol import Execution, OwnEnvironment, ReplicaSpec, Send

log = logging.getLogger(__name__)

CACHE_SHARE = 4
"""The cache of keys and values takes at most this part of the memory that is free."""
MOST_CACHE_BYTES = 2 << 30


def load_language_model(
    spec: ReplicaSpec, send: Send, flight: FlightRecord, progress: Progress
) -> LanguageWorker:
    """What serves a language model. Raises whatever the libraries raise."""
    if spec.environment:
        return _below(spec, spec.environment, send, flight, progress)
    folder = Path(spec.model_dir)
    # Reading weights and compiling leave the interpreter's lock alone.
    with ThreadPoolExecutor(max_workers=1) as beside:
        tokenizer = beside.submit(load_tokenizer, folder)
        runner = _runner(spec, progress)
    vision = spec.pipeline == IMAGE_TEXT_TO_TEXT
    prompts = Prompts(
        folder,
        max_length=runner.max_length,
        vocabulary=runner.vocabulary,
        images=spec.limits if vision else None,
        tokenizer=tokenizer.result(),
    )
    scheduler = Scheduler(runner, prompts.defaults.ends)

    def adopt(execution: Execution) -> None:
        scheduler.adopt(_converted(spec, execution))

    convertible = (
        runner.name == "torch"
        and not vision
        and device_of(spec.device).type == "cpu"
        and dtype_of(spec.dtype, device_of("cpu")) is not torch.float16
    )
    worker = LanguageWorker(scheduler, prompts, send, flight, adopt if convertible else None)
    worker.sharing = runner.sharing
    return worker


def _below(
    spec: ReplicaSpec,
    environment: OwnEnvironment,
    send: Send,
    flight: FlightRecord,
    progress: Progress,
) -> LanguageWorker:
    """What serves a language model that runs in a process below this one."""
    progress(0.1, "starting vLLM")
    child = Child(environment, spec.device, spec.threads)
    ready = child.load(
        Load(
            folder=spec.model_dir,
            device=spec.device.partition(":")[0],
            dtype=spec.dtype,
            cache_bytes=_cache_bytes(),
            gpu_share=environment.gpu_share,
        )
    )
    prompts = Prompts(
        Path(spec.model_dir), max_length=ready.max_length, vocabulary=ready.vocabulary
    )
    return LanguageWorker(VllmModel(child, ready, prompts.defaults.ends), prompts, send, flight)


def _runner(spec: ReplicaSpec, progress: Progress) -> Runner:
    if spec.execution:
        progress(0.1, "compiling")
        return _converted(spec, spec.execution)
    progress(0.1, "reading weights")
    device = device_of(spec.device)
    folder = Path(spec.model_dir)
    kind = architecture(folder) if spec.pipeline == IMAGE_TEXT_TO_TEXT else torch_engine.TEXT
    model = torch_engine.load(folder, dtype_of(spec.dtype, device), device, kind)
    runner = torch_engine.TorchRunner(model, threads=spec.threads, cache_bytes=_cache_bytes())
    if spec.sharing:
        runner.restrict(spec.sharing)
    else:
        progress(0.9, "looking what may share a batch")
        runner.enter_thread()
        batch_invariance.find(runner)
    return runner


def _converted(spec: ReplicaSpec, execution: Execution) -> Runner:
    return openvino_engine.OpenVinoRunner(
        Path(execution.folder),
        threads=spec.threads,
        precision=execution.precision,
        cache_bytes=_cache_bytes(),
    )


def _cache_bytes() -> int:
    return min(MOST_CACHE_BYTES, psutil.virtual_memory().available // CACHE_SHARE)
