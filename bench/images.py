"""Images over HTTP, against diffusers called in a loop in one process."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from bench.client import Connection
from bench.common import CACHE, ROOT, Report, at_least, cores, scratch
from bench.processes import awake, end, suspend
from bench.service import serving

MODEL = "measured"
PROMPTS = [f"a {color} {shape}" for color in ("red", "blue") for shape in ("circle", "square")]
STEPS = 10
CLIENTS = {1: 6, 8: 2}
"""Clients → images of each, a round."""
AIMS = {1: 0.95, 8: 1.3}
"""Clients → how many times the loop's images ours should draw."""


def run(rounds: int) -> Report:
    report = Report("images", "Images of 64x64 pixels over HTTP, closed loops")
    folder = _pipeline()
    with scratch() as place, serving(place) as service, _loop(folder) as loop:
        identifier = service.deploy(folder, MODEL, "text-to-image", "hot", "auto")
        service.wait_status(identifier, "ready")
        service.wait_calibrated("diffusers")

        def connect() -> Connection:
            return service.connect("/v1/images/generations")

        for clients in CLIENTS:
            _served(connect, clients, 1)
        for _ in range(rounds):
            for clients, each in CLIENTS.items():
                with awake(loop.pid):
                    limit = loop.rate(clients * each)
                ours = _served(connect, clients, each)
                suffix = f"{clients} client{'s' if clients > 1 else ''}"
                report.add(f"diffusers in a loop, beside {suffix}", "images/s", limit)
                report.add(f"ours, {suffix}", "images/s", ours)
                aim = AIMS[clients]
                report.add(
                    f"ours / the loop, {suffix}",
                    "x",
                    ours / limit,
                    aim=f"≥ {aim}",
                    meets=at_least(aim),
                )
    report.notes = [
        f"A Stable Diffusion of random weights, 4 M parameters; {STEPS} steps with guidance, f32, "
        f"{cores()} threads, PNG. No seeds: ours may batch.",
        "The loop draws one image after the other and encodes it, without a server; it is "
        "suspended while ours is measured.",
    ]
    return report


def _served(connect: Any, clients: int, each: int) -> float:
    """Images a second of clients that each ask for one after the other."""
    barrier = threading.Barrier(clients + 1)
    errors: list[Exception] = []

    def client(number: int) -> None:
        body = {"model": MODEL, "num_inference_steps": STEPS, "response_format": "b64_json"}
        with connect() as connection:
            barrier.wait()
            for turn in range(each):
                body["prompt"] = PROMPTS[(number + turn) % len(PROMPTS)]
                try:
                    connection.post(json.dumps(body).encode())
                except Exception as error:
                    errors.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return clients * each / (time.perf_counter() - started)


class _Loop:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid

    def rate(self, images: int) -> float:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the loop has no pipes")
        self._process.stdin.write(f"{images}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the loop ended")
        return images / float(line)


@contextlib.contextmanager
def _loop(folder: Path) -> Generator[_Loop]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.images", str(folder)],
        cwd=ROOT,
        # As the replicas have it.
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        loop = _Loop(process)
        loop.rate(2)
        suspend(process.pid)
        yield loop
    finally:
        end(process.pid)
        process.wait()


def _pipeline() -> Path:
    """A Stable Diffusion of a few million parameters for 64 by 64 pixels, made once."""
    from tests.support import diffusion

    folder = CACHE / "stable-diffusion-4m"
    if not (folder / "model_index.json").exists():
        diffusion.made(diffusion.larger_stable_diffusion, folder)
    return folder


def main() -> None:
    import io

    import diffusers
    import torch

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(cores())
    pipe = diffusers.StableDiffusionPipeline.from_pretrained(sys.argv[1])
    pipe.set_progress_bar_config(disable=True)
    for line in sys.stdin:
        started = time.perf_counter()
        for turn in range(int(line)):
            picture = pipe(PROMPTS[turn % len(PROMPTS)], num_inference_steps=STEPS).images[0]
            picture.save(io.BytesIO(), "PNG")
        print(time.perf_counter() - started, file=answers)


if __name__ == "__main__":
    main()
