"""Images over HTTP, compared with diffusers in a loop in one process."""

import contextlib
import json
import string
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from bench import dtypes
from bench.client import Connection
from bench.common import CACHE, Plan, Report, at_least, clients_of, cores, progress, scratch
from bench.loops import Loop, looping
from bench.peers import environments
from bench.peers.environments import NotMadeError
from bench.service import Service, serving

OURS, LOOP = "ours", "diffusers in a loop"
PIPELINE = "text-to-image"
PATH = "/v1/images/generations"
PROMPTS = [f"a {color} {shape}" for color in ("red", "blue") for shape in ("circle", "square")]
STEPS = 10
TEXT_WIDTH = 32
"""Width of the text model, which can be small because prompts say little."""
CLIENTS = {1: 6, 8: 2}
"""Maps the number of clients to images per client and round."""
AIMS = {1: 0.95, 8: 1.3}
"""Maps the number of clients to the aimed ratio of Stoker's image rate to the loop's."""


def run(plan: Plan) -> Report:
    report = Report("images", "Images of 64x64 pixels over HTTP, closed loops")
    folder = _pipeline()
    with scratch() as place, serving(report, place) as service, contextlib.ExitStack() as stack:
        own_dtype = report.settings[OURS]["dtype"] = dtypes.of_ours(folder)
        loop, dtype = _loop(report, stack, folder, place)
        sides = {OURS: _deployed(service, folder)}
        if dtype not in ("", own_dtype):
            sides[f"{OURS}, {dtype}"] = _deployed(service, folder, dtype=dtype)
        for model in sides.values():
            for clients in CLIENTS:
                _served(service.connect, model, clients, 1)
        for _ in range(plan.rounds):
            for clients, each in plan.sized(CLIENTS, {1: 2, 8: 1}).items():
                limit = _rate(loop, clients * each) if loop else None
                if limit:
                    report.add(f"{LOOP}, beside {clients_of(clients)}", "images/s", limit)
                for side, model in sides.items():
                    label = f"{side}, {clients_of(clients)}"
                    with report.client.asking(label):
                        rate = _served(service.connect, model, clients, each)
                    report.add(label, "images/s", rate)
                    progress(f"{label}: {rate:.2f} images/s")
                    if limit:
                        _compare(report, side, clients, rate / limit)
    report.notes += [
        f"A Stable Diffusion of random weights, 4 M parameters; {STEPS} steps with guidance, "
        f"{cores()} cores, PNG. No seeds: ours may batch.",
        "The loop draws one image after the other and encodes it, without a server; it is "
        "suspended while ours is measured.",
    ]
    return report


def _compare(report: Report, side: str, clients: int, ratio: float) -> None:
    label, aim = f"{side} / the loop, {clients_of(clients)}", AIMS[clients]
    report.add(label, "x", ratio, aim=f"≥ {aim}", meets=at_least(aim))


def _deployed(service: Service, folder: Path, **wish: str) -> str:
    """Deploys the model and returns its id once it is ready."""
    model = "-".join(["measured", *wish.values()])
    deployment = service.deploy(folder, model, PIPELINE, readiness="hot", **wish)
    service.wait_status(deployment, "ready")
    service.wait_calibrated(deployment)
    return model


def _loop(
    report: Report, stack: contextlib.ExitStack, folder: Path, place: Path
) -> tuple[Loop | None, str]:
    """Starts the loop in its fastest dtype. Returns None if it is not available."""

    def rate(dtype: str) -> float:
        with _looping(report, folder, dtype, place) as loop:
            _rate(loop, 2)
            return _rate(loop, 6)

    try:
        dtype = dtypes.best(report, LOOP, "images/s", rate)
        loop = stack.enter_context(_looping(report, folder, dtype, place))
        _rate(loop, 2)
    except (NotMadeError, RuntimeError) as error:
        report.left_out(LOOP, error)
        return None, ""
    return loop, dtype


@contextlib.contextmanager
def _looping(report: Report, folder: Path, dtype: str, place: Path) -> Generator[Loop]:
    python = environments.python("diffusers")
    command = [python, "-m", "bench.peers.diffusers_loop", folder, dtype, str(STEPS)]
    with looping(report, LOOP, command, {}, place) as loop:
        yield loop


def _rate(loop: Loop, images: int) -> float:
    """Returns images per second."""
    return images / loop.ask([PROMPTS[at % len(PROMPTS)] for at in range(images)])


def _served(connect: Callable[[str], Connection], model: str, clients: int, each: int) -> float:
    """Returns images per second for clients that send one request after the other."""
    barrier = threading.Barrier(clients + 1)
    errors: list[Exception] = []

    def client(number: int) -> None:
        body = {"model": model, "num_inference_steps": STEPS, "response_format": "b64_json"}
        with connect(PATH) as connection:
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


def _pipeline() -> Path:
    """Returns a Stable Diffusion of a few million parameters for 64 by 64 pixels. It is built
    once.
    """
    folder = CACHE / "stable-diffusion-4m"
    if not (folder / "model_index.json").exists():
        _save_pipeline(folder)
    return folder


def _save_pipeline(folder: Path) -> None:
    import diffusers
    import torch

    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(64, 128),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=8,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(16, 16, 32),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=64,
    )
    tokenizer, text_encoder = _texts()
    diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=diffusers.DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)


def _texts() -> tuple[Any, Any]:
    """Returns a tokenizer that spells prompts by letters, with CLIP's 77 tokens, and a small
    encoder.
    """
    import transformers

    signs = [*string.ascii_lowercase, *string.digits, ",", "."]
    words = ["<|startoftext|>", "<|endoftext|>", *signs, *(f"{sign}</w>" for sign in signs)]
    vocabulary = {word: number for number, word in enumerate(words)}
    config = transformers.CLIPTextConfig(
        vocab_size=len(vocabulary),
        hidden_size=TEXT_WIDTH,
        intermediate_size=37,
        num_attention_heads=2,
        num_hidden_layers=2,
        projection_dim=TEXT_WIDTH,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    tokenizer = transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)
    return tokenizer, transformers.CLIPTextModel(config)
