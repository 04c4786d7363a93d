"""Transcription: seconds of speech a second, against transformers' pipeline called in a loop."""

import base64
import contextlib
import io
import json
import random
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Generator, Sequence
from pathlib import Path

from bench.client import Connection
from bench.common import ROOT, Report, at_least, cores, scratch
from bench.models import SEED, WHISPER_TOKENS, whisper_tiny
from bench.processes import awake, end, suspend
from bench.service import serving

MODEL = "measured"
PIPELINE = "automatic-speech-recognition"
PATH = "/v1/audio/transcriptions"
RATE = 16_000
CLIP_S = 10
REQUESTS = {1: 2, 8: 1}
"""Clients → requests of each, a round."""
LOOP, OURS = "pipeline() in a loop", "ours"
AIM = 1.5


def run(rounds: int) -> Report:
    report = Report("transcription", f"Whisper tiny, clips of {CLIP_S} s, closed loops")
    folder = whisper_tiny()
    clips = [_clip(number) for number in range(max(c * each for c, each in REQUESTS.items()))]
    bodies = [
        json.dumps({"model": MODEL, "file": base64.b64encode(clip).decode()}).encode()
        for clip in clips
    ]
    with scratch() as place, serving(place) as service, _looping(folder, clips, place) as loop:
        # Automatic ones are converted as well, once they have worked for some seconds.
        deployment = service.deploy(folder, MODEL, PIPELINE, "hot", "openvino")
        service.wait_status(deployment, "ready")
        engine = "openvino" if service.wait_converted() else "torch"
        service.wait_engine(deployment, engine)
        service.wait_calibrated(engine)
        for clients, each in REQUESTS.items():
            _load([service.connect(PATH) for _ in range(clients)], bodies, each)
        loop.run(1)
        for _ in range(rounds):
            theirs = CLIP_S * len(clips) / loop.run(len(clips))
            report.add(LOOP, "x real time", theirs)
            for clients, each in REQUESTS.items():
                seconds = _load([service.connect(PATH) for _ in range(clients)], bodies, each)
                ours = CLIP_S * clients * each / seconds
                suffix = f", {clients} client{'s' if clients > 1 else ''}"
                report.add(f"{OURS}{suffix}", "x real time", ours)
                report.add(
                    f"{OURS} / {LOOP}{suffix}",
                    "x",
                    ours / theirs,
                    aim=f"≥ {AIM}",
                    meets=at_least(AIM),
                )
    report.notes = [
        f"Random weights, {WHISPER_TOKENS} tokens written a clip, greedy, the language found by "
        f"the model; float32 with {cores()} threads, ours with {engine}, the loop with torch.",
        "The loop decodes the same files, without a server; suspended while ours is measured.",
    ]
    return report


def _clip(number: int) -> bytes:
    """A WAV file of noise that swells and fades."""
    source = random.Random(SEED + number)
    size = CLIP_S * RATE
    samples = bytearray(source.randbytes(2 * size))
    # The high bytes are made small: a quarter of full scale.
    samples[1::2] = bytes((byte >> 2) for byte in samples[1::2])
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, RATE, size, "NONE", ""))
        file.writeframes(bytes(samples))
    return buffer.getvalue()


def _load(connections: Sequence[Connection], bodies: Sequence[bytes], each: int) -> float:
    """Seconds until each client has had its answers, one after the other."""
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


class _Loop:
    """transformers' pipeline in a process of its own, suspended unless it runs."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, count: int) -> float:
        """Seconds that so many of the clips take, one after the other."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the child has no pipes")
        with awake(self._process.pid):
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the loop ended")
        return float(line)


@contextlib.contextmanager
def _looping(folder: Path, clips: Sequence[bytes], place: Path) -> Generator[_Loop]:
    paths = [place / f"{number}.wav" for number in range(len(clips))]
    for path, clip in zip(paths, clips, strict=True):
        path.write_bytes(clip)
    command = [sys.executable, "-m", "bench.peers.whisper_loop", str(folder), str(cores())]
    process = subprocess.Popen(
        [*command, *map(str, paths)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # As our replicas are: the kernel may share out its time by session.
        start_new_session=True,
    )
    try:
        # It says so when it has loaded.
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError("the loop did not start")
        suspend(process.pid)
        yield _Loop(process)
    finally:
        end(process.pid)
        process.communicate()
