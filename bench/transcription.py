"""Transcription: seconds of speech per second, compared with transformers' pipeline in a loop."""

import base64
import contextlib
import io
import json
import random
import threading
import time
import wave
from collections.abc import Generator, Sequence
from pathlib import Path

from bench import dtypes
from bench.client import Connection
from bench.common import Plan, Report, at_least, clients_of, cores, progress, scratch
from bench.loops import Loop, looping
from bench.models import WHISPER_TOKENS, whisper_tiny
from bench.peers import environments
from bench.peers.environments import NotMadeError
from bench.samples import SEED
from bench.service import Service, serving

PIPELINE = "automatic-speech-recognition"
PATH = "/v1/audio/transcriptions"
RATE = 16_000
CLIP_S = 10
REQUESTS = {1: 2, 8: 1}
"""Maps the number of clients to requests per client and round."""
LOOP, OURS = "pipeline() in a loop", "ours"
AIM = 1.5


def run(plan: Plan) -> Report:
    report = Report("transcription", f"Whisper tiny, clips of {CLIP_S} s, closed loops")
    folder = whisper_tiny()
    clips = [_clip(number) for number in range(max(c * each for c, each in REQUESTS.items()))]
    with scratch() as place, serving(report, place) as service, contextlib.ExitStack() as stack:
        own_dtype = report.settings[OURS]["dtype"] = dtypes.of_ours(folder)
        loop, dtype = _loop(report, stack, folder, clips, place)
        sides = {OURS: _deployed(service, folder, clips)}
        if dtype not in ("", own_dtype):
            sides[f"{OURS}, {dtype}"] = _deployed(service, folder, clips, dtype=dtype)
        for bodies in sides.values():
            for clients, each in REQUESTS.items():
                _load([service.connect(PATH) for _ in range(clients)], bodies, each)
        for _ in range(plan.rounds):
            theirs = CLIP_S * len(clips) / loop.ask(len(clips)) if loop else None
            if theirs:
                report.add(LOOP, "x real time", theirs)
            for side, bodies in sides.items():
                for clients, each in REQUESTS.items():
                    suffix = f", {clients_of(clients)}"
                    connections = [service.connect(PATH) for _ in range(clients)]
                    with report.client.asking(side + suffix):
                        seconds = _load(connections, bodies, each)
                    rate = CLIP_S * clients * each / seconds
                    report.add(side + suffix, "x real time", rate)
                    progress(f"{side}{suffix}: {rate:.1f} x real time")
                    if theirs:
                        label = f"{side} / {LOOP}{suffix}"
                        aim = f"≥ {AIM}"
                        report.add(label, "x", rate / theirs, aim=aim, meets=at_least(AIM))
    report.notes += [
        f"Random weights, {WHISPER_TOKENS} tokens written a clip, greedy, the language found by "
        f"the model; {cores()} cores.",
        "The loop decodes the same files, without a server; suspended while ours is measured.",
    ]
    return report


def _deployed(service: Service, folder: Path, clips: Sequence[bytes], **wish: str) -> list[bytes]:
    """Deploys a model and waits for its final configuration. Returns the requests to it."""
    model = "-".join(["measured", *wish.values()])
    bodies = [
        json.dumps({"model": model, "file": base64.b64encode(clip).decode()}).encode()
        for clip in clips
    ]
    deployment = service.deploy(folder, model, PIPELINE, readiness="hot", **wish)
    service.settle(deployment, PATH, bodies)
    return bodies


def _loop(
    report: Report,
    stack: contextlib.ExitStack,
    folder: Path,
    clips: Sequence[bytes],
    place: Path,
) -> tuple[Loop | None, str]:
    """Starts transformers' pipeline in its fastest dtype. Returns None if it is not available."""
    paths = [place / f"{number}.wav" for number in range(len(clips))]
    for path, clip in zip(paths, clips, strict=True):
        path.write_bytes(clip)

    @contextlib.contextmanager
    def running(dtype: str) -> Generator[Loop]:
        python = environments.python("pipeline")
        arguments = [folder, dtype, str(WHISPER_TOKENS), *paths]
        command = [python, "-m", "bench.peers.whisper_loop", *arguments]
        with looping(report, LOOP, command, {}, place) as loop:
            loop.ask(1)
            yield loop

    def rate(dtype: str) -> float:
        with running(dtype) as loop:
            return CLIP_S * 2 / loop.ask(2)

    try:
        dtype = dtypes.best(report, LOOP, "x real time", rate)
        return stack.enter_context(running(dtype)), dtype
    except (NotMadeError, RuntimeError) as error:
        report.left_out(LOOP, error)
        return None, ""


def _clip(number: int) -> bytes:
    """Returns a WAV file of noise that swells and fades."""
    source = random.Random(SEED + number)
    size = CLIP_S * RATE
    samples = bytearray(source.randbytes(2 * size))
    # Smaller high bytes reduce the amplitude to a quarter of full scale.
    samples[1::2] = bytes((byte >> 2) for byte in samples[1::2])
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, RATE, size, "NONE", ""))
        file.writeframes(bytes(samples))
    return buffer.getvalue()


def _load(connections: Sequence[Connection], bodies: Sequence[bytes], each: int) -> float:
    """Returns the seconds until each client has received its answers, one after the other."""
    errors: list[Exception] = []

    def client(connection: Connection, own: Sequence[bytes]) -> None:
        try:
            with connection:
                for body in own:
                    connection.post(body)
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=client, args=(connection, bodies[at * each : (at + 1) * each]))
        for at, connection in enumerate(connections)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if errors:
        raise RuntimeError("a request failed") from errors[0]
    return seconds
