"""Speech on a real server through the real openai SDK equals that of transformers."""

import base64
import io
import json
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy
import openai
import pytest
from huggingface_hub.errors import HfHubHTTPError

from stoker.base.media_limits import MediaLimits
from stoker.inference.openai.speech import CONTENT_TYPES, MAX_CHARACTERS
from stoker.media import audio
from stoker.media.encode_audio import PCM_RATE
from tests.support import sdk2, speech
from tests.support.deploying import deploy
from tests.support.hub import inference_client
from tests.support.server import Server

PIECES = [
    "The first sentence is a little longer.",
    "Does the second one ask for something?",
    "And with the third one it ends.",
]
TEXT = " ".join(PIECES)
SEED = 7
LSB = 1 / 32768
NATIVE = ("wav", "flac", "pcm")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("speech")
    return {
        "one": speech.vits(root / "one"),
        "many": speech.vits(root / "many", speakers=40, rate=16_000),
        "named": speech.speecht5(root / "named"),
        "conformer": speech.fastspeech2(root / "conformer"),
    }


@pytest.fixture(scope="module")
def account(server: Server, folders: dict[str, Path]) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("speech") as client:
        for name, folder in folders.items():
            row = deploy(client, folder, name)
            assert row["pipeline"] == "text-to-speech"
        yield client


@pytest.fixture(scope="module")
def client(server: Server, account: httpx.Client) -> openai.OpenAI:
    key = str(account.headers["authorization"]).removeprefix("Bearer ")
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> speech.Waveform:
    return numpy.concatenate([speech.spoken(folders["one"], piece, SEED) for piece in PIECES])


def say(client: openai.OpenAI, text: str = TEXT, model: str = "one", **options: Any) -> bytes:
    options = {"voice": "alloy", "extra_body": {"seed": SEED}} | options
    return client.audio.speech.create(model=model, input=text, **options).content


def heard(content: bytes, form: str, rate: int) -> speech.Waveform:
    if form == "pcm":
        return numpy.frombuffer(content, "<i2").astype(numpy.float32) * LSB
    return audio.decode(content, rate, MediaLimits())


def likeness(found: speech.Waveform, wanted: speech.Waveform, rate: int) -> float:
    """Returns the correlation of two sounds at the best shift, within the band that codecs keep.
    The shift is needed because codecs begin later.

    An untrained model's sound has much energy below that band. Speech codecs treat it as an error.
    """
    size = len(found) + len(wanted)
    frequencies = numpy.fft.rfftfreq(size, 1 / rate)
    in_band = (frequencies > 100) & (frequencies < 4_000)
    first, other = (numpy.fft.rfft(sound, size) * in_band for sound in (found, wanted))
    norms = [numpy.linalg.norm(numpy.fft.irfft(band, size)) for band in (first, other)]
    return float(numpy.fft.irfft(first * numpy.conj(other), size).max() / numpy.prod(norms))


class TestFormats:
    @pytest.mark.parametrize("form", CONTENT_TYPES)
    def test_equal_transformers(
        self, client: openai.OpenAI, expected: speech.Waveform, form: str
    ) -> None:
        decoded = heard(say(client, response_format=form), form, speech.RATE)
        if form in NATIVE:
            assert decoded.shape == expected.shape
            assert numpy.abs(decoded - expected).max() <= LSB
        else:
            assert len(decoded) / speech.RATE == pytest.approx(len(expected) / speech.RATE, abs=0.1)
            assert likeness(decoded, expected, speech.RATE) > 0.9

    @pytest.mark.parametrize("form", CONTENT_TYPES)
    def test_type(self, account: httpx.Client, form: str) -> None:
        body = {"model": "one", "input": "Yes.", "voice": "alloy", "response_format": form}
        answer = account.post("/v1/audio/speech", json=body)
        assert answer.headers["content-type"] == CONTENT_TYPES[form]

    def test_version_2_of_the_sdk(
        self, account: httpx.Client, expected: speech.Waveform, tmp_path: Path
    ) -> None:
        spoken = tmp_path / "spoken.wav"
        script = f"""
sdk.audio.speech.create(
    model="one", voice="alloy", input={TEXT!r}, response_format="wav", extra_body={{"seed": {SEED}}}
).write_to_file(sys.argv[1])
print("null")
"""
        sdk2.printed(script, account, str(spoken))
        decoded = heard(spoken.read_bytes(), "wav", speech.RATE)
        assert numpy.abs(decoded - expected).max() <= LSB

    def test_mp3_is_the_default(self, account: httpx.Client) -> None:
        answer = account.post("/v1/audio/speech", json={"model": "one", "input": "Yes."})
        assert answer.headers["content-type"] == "audio/mpeg"

    def test_the_length_is_there_once_it_can_be_known(self, client: openai.OpenAI) -> None:
        whole = say(client, PIECES[0], response_format="wav")
        assert int.from_bytes(whole[4:8], "little") == len(whole) - 8
        assert int.from_bytes(whole[40:44], "little") == len(whole) - 44
        streamed = say(client, response_format="wav")
        assert streamed[4:8] == streamed[40:44] == b"\xff" * 4

    def test_pcm_has_the_rate_that_clients_expect(
        self, client: openai.OpenAI, folders: dict[str, Path]
    ) -> None:
        native = speech.spoken(folders["many"], PIECES[0], SEED, speaker_id=3)
        decoded = heard(
            say(client, PIECES[0], "many", voice="3", response_format="pcm"), "pcm", PCM_RATE
        )
        assert len(decoded) / PCM_RATE == pytest.approx(len(native) / 16_000, abs=0.001)
        again = audio.from_samples(decoded, PCM_RATE, 16_000, MediaLimits())
        assert likeness(again, native, 16_000) > 0.99


class TestModels:
    def test_speecht5(self, client: openai.OpenAI, folders: dict[str, Path]) -> None:
        expected_parts = [
            speech.spoken_by_speecht5(
                folders["named"], piece, SEED, "omar", min(20, 2 * 32 / len(piece))
            )
            for piece in PIECES
        ]
        content = say(client, model="named", voice="omar", response_format="wav")
        decoded = heard(content, "wav", 16_000)
        assert decoded.shape == numpy.concatenate(expected_parts).shape
        assert numpy.abs(decoded - numpy.concatenate(expected_parts)).max() <= LSB

    def test_fastspeech2(self, client: openai.OpenAI, folders: dict[str, Path]) -> None:
        expected_parts = [speech.spoken(folders["conformer"], piece, SEED) for piece in PIECES]
        content = say(client, model="conformer", response_format="flac")
        decoded = heard(content, "flac", 22_050)
        assert decoded.shape == numpy.concatenate(expected_parts).shape
        assert numpy.abs(decoded - numpy.concatenate(expected_parts)).max() <= LSB

    def test_a_seed_repeats_and_none_does_not(self, client: openai.OpenAI) -> None:
        drawn = {say(client, PIECES[2], response_format="pcm") for _ in range(2)}
        free = {say(client, PIECES[2], response_format="pcm", extra_body={}) for _ in range(2)}
        assert (len(drawn), len(free)) == (1, 2)


class TestVoices:
    def test_are_those_of_the_model(self, client: openai.OpenAI, folders: dict[str, Path]) -> None:
        decoded = heard(
            say(client, PIECES[0], "many", voice={"id": "39"}, response_format="wav"), "wav", 16_000
        )
        reference = speech.spoken(folders["many"], PIECES[0], SEED, speaker_id=39)
        other = speech.spoken(folders["many"], PIECES[0], SEED, speaker_id=38)
        assert numpy.abs(decoded - reference).max() <= LSB
        assert other.shape != reference.shape or numpy.abs(other - reference).max() > 0.1

    @pytest.mark.parametrize("voice", ["default", "shimmer", None])
    def test_any_name_will_do_for_the_only_one(self, account: httpx.Client, voice: Any) -> None:
        body = {"model": "one", "input": "Yes.", "voice": voice, "seed": 1}
        assert account.post("/v1/audio/speech", json=body).status_code == 200

    @pytest.mark.parametrize(
        ("model", "voice", "listed"),
        [
            ("many", "alloy", "0, 1, 2, "),
            ("many", None, "29 and 10 more"),
            ("many", "40", "0, 1"),
            ("named", "default", "clara, omar."),
            ("one", "clara", "default."),
        ],
    )
    def test_unknown(self, account: httpx.Client, model: str, voice: Any, listed: str) -> None:
        body = {"model": model, "input": "Yes.", "voice": voice}
        answer = account.post("/v1/audio/speech", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "voice")
        assert listed in answer.json()["error"]["message"]


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.7, 4.0])
def test_speed(client: openai.OpenAI, expected: speech.Waveform, speed: float) -> None:
    decoded = heard(say(client, response_format="wav", speed=speed), "wav", speech.RATE)
    # The filter works in windows, and the last ones are not always full.
    assert len(decoded) / speech.RATE == pytest.approx(
        len(expected) / speech.RATE / speed, rel=0.02, abs=0.1
    )


@pytest.mark.parametrize("form", CONTENT_TYPES)
def test_a_short_sound_at_another_speed(client: openai.OpenAI, form: str) -> None:
    """The sound is shorter than the windows in which the tempo is changed."""
    spoken = [say(client, "a", "conformer", response_format=form, speed=speed) for speed in (1, 4)]
    plain, fast = (heard(content, form, speech.RATE) for content in spoken)
    assert 0 < len(fast) <= len(plain) < 0.15 * speech.RATE
    if form in NATIVE:
        assert len(fast) == pytest.approx(max(len(plain) / 4, 0.01 * speech.RATE), abs=3)
    assert numpy.abs(fast).max() > numpy.abs(plain).max() / 10


class TestStreaming:
    @pytest.mark.one_machine
    def test_the_first_bytes_leave_while_it_speaks(
        self, client: openai.OpenAI, account: httpx.Client
    ) -> None:
        text = " ".join([TEXT] * 8)
        with client.audio.speech.with_streaming_response.create(
            model="one", input=text, voice="alloy", response_format="pcm"
        ) as answer:
            # A chunk has the bytes that have arrived when it is read.
            pieces = answer.iter_bytes(1024)
            first = next(pieces)
            assert outstanding(account, "one") == 1
            rest = b"".join(pieces)
        assert answer.headers["transfer-encoding"] == "chunked"
        assert len(rest) > 5 * len(first)

    def test_a_client_that_goes_away_ends_it(
        self, client: openai.OpenAI, account: httpx.Client
    ) -> None:
        text = " ".join([TEXT] * 8)
        with client.audio.speech.with_streaming_response.create(
            model="one", input=text, voice="alloy"
        ) as answer:
            next(answer.iter_bytes())
        deadline = time.monotonic() + 60
        while outstanding(account, "one"):
            assert time.monotonic() < deadline
        assert say(client, PIECES[0])

    def test_events(self, client: openai.OpenAI, expected: speech.Waveform) -> None:
        content = say(client, stream_format="sse", response_format="wav").decode()
        events = [
            json.loads(line.removeprefix("data: "))
            for line in content.split("\n\n")
            if line.startswith("data: ")
        ]
        assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
        sound = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
        assert numpy.abs(heard(sound, "wav", speech.RATE) - expected).max() <= LSB
        # VITS has a blank before each character and after the last. It does not know the full stop.
        tokens = sum(2 * len(piece.rstrip(".?")) + 1 for piece in PIECES)
        assert events[-1] == {
            "type": "speech.audio.done",
            "usage": {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens},
        }

    def test_events_have_their_type(self, account: httpx.Client) -> None:
        body = {"model": "one", "input": "Yes.", "stream_format": "sse"}
        answer = account.post("/v1/audio/speech", json=body)
        assert answer.headers["content-type"].startswith("text/event-stream")


def test_inference_client(account: httpx.Client, expected: speech.Waveform) -> None:
    """The client of huggingface_hub sends the generation options as parameters."""
    hub = inference_client(account, "one", "/v1/audio/speech")
    options = {"seed": SEED, "response_format": "wav"}
    decoded = heard(hub.text_to_speech(TEXT, extra_body=options), "wav", speech.RATE)
    assert numpy.abs(decoded - expected).max() <= LSB
    assert hub.text_to_speech("Yes.").startswith(b"\xff"), "mp3"
    with pytest.raises(HfHubHTTPError) as refused:
        hub.text_to_speech("Yes.", temperature=0.5)
    error = refused.value.response.json()["error"]
    assert (refused.value.response.status_code, error["param"]) == (400, "temperature")
    assert (
        "which accepts instructions, response_format, seed, service_tier, speed" in error["message"]
    )


def outstanding(account: httpx.Client, model: str) -> int:
    rows = account.get("/v1/deployments").raise_for_status().json()["data"]
    (deployment,) = [row for row in rows if row["model"] == model]
    return sum(worker["outstanding"] for worker in deployment["workers"])


class TestRefused:
    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"input": ""}, "input"),
            ({"input": " \n"}, "input"),
            ({"input": "a" * (MAX_CHARACTERS + 1)}, "input"),
            ({"input": None}, "input"),
            ({"input": ["Yes."]}, "input"),
            ({"input": "!?"}, "input"),
            ({"voice": {"name": "x"}}, "voice"),
            ({"voice": 7}, "voice"),
            ({"voice": "x" * 200}, "voice"),
            ({"response_format": "ogg"}, "response_format"),
            ({"speed": 0.2}, "speed"),
            ({"speed": 4.1}, "speed"),
            ({"speed": "fast"}, "speed"),
            ({"instructions": "Whisper."}, "instructions"),
            ({"stream_format": "text"}, "stream_format"),
            ({"seed": -1}, "seed"),
            ({"seed": 2**63}, "seed"),
        ],
    )
    def test_bad_fields(self, account: httpx.Client, fields: dict[str, Any], param: str) -> None:
        body = {"model": "one", "input": "Yes.", "voice": "alloy"} | fields
        answer = account.post("/v1/audio/speech", json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param, answer.text

    def test_a_word_longer_than_the_model_takes(self, account: httpx.Client) -> None:
        body = {"model": "named", "input": "a" * 101, "voice": "clara"}
        answer = account.post("/v1/audio/speech", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
        assert "at most 100" in answer.json()["error"]["message"]

    def test_instructions_may_be_empty(self, client: openai.OpenAI) -> None:
        assert say(client, "Yes.", instructions="")

    def test_another_pipelines_endpoint(self, account: httpx.Client) -> None:
        body = {"model": "one", "inputs": "x"}
        answer = account.post("/v1/fill-mask", json=body)
        assert answer.status_code == 400
        assert "/v1/audio/speech" in answer.json()["error"]["message"]


def test_whole_files_open_elsewhere(client: openai.OpenAI) -> None:
    with wave.open(io.BytesIO(say(client, PIECES[0], response_format="wav"))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert len(file.readframes(file.getnframes())) == 2 * file.getnframes()
