"""Long values are cut out of JSON while it is received, and are put back at the right place."""

import base64
import json
import random
from array import array
from typing import Any

import pytest
from pydantic import BaseModel

from stoker.base.errors import InvalidRequestError, PayloadTooLargeError
from stoker.inference.json_bodies import CUT_BYTES, Cutter, validated, with_media_alone
from stoker.inference.openai.chat import ChatRequest
from stoker.media.inline import Inline
from stoker.media.media import Media
from stoker.models.tasks.inputs import Audio, Image

LIMIT = 200_000
LONG = "x" * CUT_BYTES


class Body(BaseModel):
    image: Image | None = None
    sound: Audio | None = None
    images: list[Image] = []
    text: str = ""
    numbers: list[float] = []
    more: Any = None


def cut(text: str | bytes, seed: int = 0, limit: int = LIMIT) -> Cutter:
    """Passes a text to a cutter in parts of random sizes. Returns the cutter."""
    raw = text.encode() if isinstance(text, str) else text
    random_ = random.Random(seed)
    cutter = Cutter(limit)
    at = 0
    while at < len(raw):
        size = random_.choice([1, 2, 7, 100, 5000, 16384])
        cutter.add(raw[at : at + size])
        at += size
    return cutter


def read(value: dict[str, Any] | str, seed: int = 0, limit: int = LIMIT) -> tuple[Body, Cutter]:
    text = value if isinstance(value, str) else json.dumps(value)
    cutter = cut(text, seed, limit)
    parsed = with_media_alone(Body, cutter)
    return parsed or validated(Body, cutter.put_back(), cutter), cutter


def content(media: Media | None) -> bytes:
    assert media is not None
    assert isinstance(media.source, Inline)
    return bytes(media.source.samples() if media.source.is_numbers else media.source.text())


class TestCutter:
    @pytest.mark.parametrize("seed", range(20))
    def test_media_are_found(self, seed: int):
        image = base64.b64encode(random.Random(seed).randbytes(30_000)).decode()
        payload = {"text": 'a "text" \\', "image": image, "images": [image, "short", image]}
        body, cutter = read(payload, seed)
        assert content(body.image).decode() == image
        first, short, last = body.images
        assert (content(first), content(last)) == (image.encode(), image.encode())
        assert short.source == "short"
        assert body.text == payload["text"]
        assert len(cutter.end()) < 500

    @pytest.mark.parametrize("seed", range(20))
    def test_texts_are_put_back(self, seed: int):
        text = 'long \\ "text" ü\n' * 1000
        payload = {
            "text": text,
            "image": LONG,
            "more": {"any": [text, LONG]},
            "numbers": [1.5] * 3000,
        }
        body, _ = read(payload, seed)
        assert body.text == text
        assert content(body.image).decode() == LONG
        assert body.more == payload["more"]
        assert body.numbers == payload["numbers"]

    @pytest.mark.parametrize("seed", range(20))
    def test_numbers_are_samples(self, seed: int):
        random_ = random.Random(seed)
        numbers = [random_.choice([0, 1, -1, random_.uniform(-1, 1), 1e-7]) for _ in range(5000)]
        for recording, rate in ((numbers, 0), ({"array": numbers, "sampling_rate": 16000}, 16000)):
            body, _ = read({"sound": recording}, seed)
            assert body.sound is not None
            assert body.sound.sampling_rate == rate
            assert content(body.sound) == array("f", numbers).tobytes()

    @pytest.mark.parametrize("seed", range(5))
    def test_messages(self, seed: int):
        parts = [
            {"type": "text", "text": LONG},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + LONG}},
        ]
        payload = {"messages": [{"role": "user", "content": parts}], "unknown": LONG}
        cutter = cut(json.dumps(payload), seed)
        assert with_media_alone(ChatRequest, cutter) is None
        generation = validated(ChatRequest, cutter.put_back(), cutter).generation({})
        ((field, image),) = generation.media()
        assert field == "messages[0].content[1].image_url"
        assert content(image) == ("data:image/png;base64," + LONG).encode()
        assert generation.prompts[0].messages[0]["content"][0]["text"] == LONG

    def test_word_cannot_be_guessed(self):
        """A string that looks like a placeholder of another request remains a string."""
        words = [bytes(cut(json.dumps({"image": LONG})).end()) for _ in range(2)]
        assert words[0] != words[1]
        word = json.loads(words[0])["image"]
        body, _ = read({"image": word, "text": word, "more": LONG})
        assert body.image is not None
        assert body.image.source == body.text == word

    @pytest.mark.parametrize(
        "text",
        [
            '{"text": "',
            f'{{"text": "{LONG}',
            '{"sound": [1, 2',
            '{"a": "b\\',
            '{"sound": [%s' % ("1," * 9999),
        ],
    )
    def test_cut_off(self, text: str):
        with pytest.raises(InvalidRequestError, match="not valid JSON"):
            cut(text).end()

    def test_h2_text_beside_media_is_limited(self):
        payload = json.dumps({"image": "a" * LIMIT * 3, "text": "b" * LIMIT})
        cutter = cut(payload)
        assert with_media_alone(Body, cutter) is None
        with pytest.raises(PayloadTooLargeError, match=str(LIMIT)):
            cutter.put_back()

    def test_h2_what_is_short_is_limited(self):
        with pytest.raises(PayloadTooLargeError, match=str(LIMIT)):
            cut(json.dumps({"more": ["a" * (CUT_BYTES - 1)] * (LIMIT // CUT_BYTES + 1)}))

    def test_h2_structure_is_limited(self):
        with pytest.raises(InvalidRequestError, match="objects and lists"):
            cut('{"more": %s' % ("[]," * LIMIT), limit=1 << 30)

    def test_list_that_goes_on_otherwise(self):
        payload = {"more": [*range(3000), "a", {"b": [1, 2]}], "image": LONG}
        body, _ = read(payload)
        assert body.more == payload["more"]


class TestInline:
    @pytest.mark.parametrize(
        "text",
        [
            "a+/=\r\n" * 200_000,
            "\\" * 700_001,
            '"\\/' * 300_000,
            "ü€\U0001f600" * 200_000,
            "\u2028\n" * 300_000,
        ],
    )
    @pytest.mark.parametrize("ascii_only", [True, False])
    def test_escapes(self, text: str, ascii_only: bool):
        for shift in range(7):
            value = "x" * shift + text
            raw = bytearray(json.dumps(value, ensure_ascii=ascii_only).encode()[1:-1])
            assert Inline(raw, is_numbers=False).text().decode() == value

    def test_slashes(self):
        raw = bytearray(b"a\\/b" * 200_000)
        assert Inline(raw, is_numbers=False).text() == b"a/b" * 200_000

    def test_samples_in_pieces(self):
        numbers = [number / 1e6 for number in range(200_000)]
        raw = bytearray(json.dumps(numbers).encode()[1:-1])
        assert Inline(raw, is_numbers=True).samples() == array("f", numbers).tobytes()

    @pytest.mark.parametrize("raw", [b"1,,2", b"1,", b",1", b"1 2", b"1.2.3", b"--1", b"1e", b"01"])
    def test_no_numbers(self, raw: bytes):
        with pytest.raises(ValueError):
            Inline(bytearray(raw), is_numbers=True).samples()
