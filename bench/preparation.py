"""`python -m bench.preparation`: images a second that one replica prepares, here and in processes.

It measures preparation only, without a model: the stages of ViT-base on JPEGs of 640 by 480 pixels.
`overhead` is the time of the transfer of one item to a process and back.
"""

import argparse
import io
import pickle
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stoker.media.media import Media
from stoker.models.stages.base import Sample, Stages
from stoker.models.tasks.registry import STAGES
from stoker.replica.counters import Counters
from stoker.replica.preparation.demand import FIRST_ITEMS, PreparationDemand
from stoker.replica.preparation.parent import fork_parent
from stoker.replica.preparation.payload import encode
from stoker.replica.preparation.permits import Permits
from stoker.replica.preparation.pool import PreparationJob, PreparationPool, Prepared
from stoker.replica.preparation.stages_copy import StagesCopy

SIZE = (640, 480)
SIDE = 224
_AT_ONCE = 64
"""Number of items that wait or are prepared at the same time."""


class Ready(Stages):
    """Stages without work: an item of any size becomes a sample of ViT-base's size."""

    auto_class = ()

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        import torch

        return [Sample({"pixel_values": torch.zeros(1, 3, SIDE, SIDE)})]

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        raise NotImplementedError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    items = [_jpeg(seed) for seed in range(_AT_ONCE)]
    # Forked first, because a process must have one thread for that.
    parents = [fork_parent(most, Permits.create()) for most in [1, *options.processes]]
    with TemporaryDirectory() as folder:
        stages = _vit(Path(folder))
        rates = [_rate_here(stages, items, options.seconds / 5) for _ in range(5)]
        print(f"here: {statistics.median(rates):.0f} images/s ({min(rates):.0f}-{max(rates):.0f})")
        stages.preprocess(items[0], {})
        print(f"stages: {len(StagesCopy().take(stages)[0]) / 1024:.0f} KiB")
        for most, parent in zip(options.processes, parents[1:], strict=True):
            rate = _rate(parent, stages, items, options.seconds)
            print(f"{most} processes: {rate:.0f} images/s")
        print(f"transfer: {_encoding_s(stages, items[0]) * 1e6:.0f} us to write a sample")
        rate = _rate(parents[0], Ready(Path(folder)), items, options.seconds)
        print(f"overhead: {1e6 / rate:.0f} us an item, with one process and no work")


def _jpeg(seed: int) -> Media:
    import numpy
    from PIL import Image

    coarse = numpy.random.default_rng(seed).integers(0, 256, (60, 80, 3), dtype=numpy.uint8)
    output = io.BytesIO()
    Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC).save(output, "JPEG", quality=90)
    return Media("image", content=output.getvalue())


def _vit(folder: Path) -> Stages:
    import transformers

    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    model = transformers.ViTForImageClassification(config)
    model.save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    stages = STAGES["image-classification"](folder)
    stages.attach(model)
    return stages


def _rate_here(stages: Stages, items: Sequence[Media], seconds: float) -> float:
    started, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        stages.preprocess(items[count % len(items)], {})
        count += 1
    return count / elapsed


def _rate(parent: Any, stages: Stages, items: Sequence[Media], seconds: float) -> float:
    """Returns the items a second that a pool prepares while `_AT_ONCE` of them are in it."""
    demand = PreparationDemand()
    for _ in range(FIRST_ITEMS):
        demand.took(1.0)
    pool = PreparationPool(
        parent,
        demand,
        Counters(),
        is_hungry=lambda: True,
        loaded=lambda problem: print(problem, end=""),
    )
    pool.load(pickle.dumps(stages) if isinstance(stages, Ready) else StagesCopy().take(stages)[0])
    free = threading.Semaphore(_AT_ONCE)
    outcomes = 0

    def deliver(outcome: Prepared) -> None:
        nonlocal outcomes
        outcome()
        outcomes += 1
        free.release()

    def put(number: int) -> None:
        free.acquire()
        item = items[number % len(items)]
        pool.put(PreparationJob(item, {}, "", is_done=lambda: False, deliver=deliver, prepare=list))

    # All processes run after these.
    for number in range(4 * _AT_ONCE):
        put(number)
    started, before = time.perf_counter(), outcomes
    number = 0
    while time.perf_counter() - started < seconds:
        put(number)
        number += 1
    rate = (outcomes - before) / (time.perf_counter() - started)
    pool.finish()
    return rate


def _encoding_s(stages: Stages, item: Media) -> float:
    samples, memory = stages.preprocess(item, {}), memoryview(bytearray(1 << 20))
    started = time.perf_counter()
    for _ in range(1000):
        encode(samples, memory)
    return (time.perf_counter() - started) / 1000


if __name__ == "__main__":
    main()
