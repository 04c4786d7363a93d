"""Times at which a sound's samples are played in its container."""

from itertools import pairwise

import pytest

from stoker.base.media_limits import MediaLimits
from stoker.media import audio
from stoker.media.timeline import Timeline
from stoker.models.stages.recognition import base
from tests.support.containers import CODECS, recorded


def timeline(content: bytes) -> tuple[float, Timeline]:
    sound = audio.decode_timed(content, 16_000, MediaLimits())
    return len(sound.samples) / 16_000, sound.timeline


@pytest.mark.parametrize("container", CODECS)
class TestContainers:
    def test_sound_that_begins_late(self, container: str) -> None:
        seconds, sound_timeline = timeline(recorded(container, [(4.94, 6.94)], video_s=0))
        assert seconds == pytest.approx(2, abs=0.1)
        assert sound_timeline.begin(0) == pytest.approx(4.94, abs=0.08)
        assert sound_timeline.end(seconds) == pytest.approx(6.94, abs=0.08)

    def test_a_video_that_begins_late(self, container: str) -> None:
        _, sound_timeline = timeline(recorded(container, [(0, 2)], video_s=3))
        assert sound_timeline.begin(0) == pytest.approx(0, abs=0.08)

    def test_from_the_earliest_stream_on(self, container: str) -> None:
        _, sound_timeline = timeline(recorded(container, [(5, 7)], video_s=3))
        assert sound_timeline.begin(0) == pytest.approx(2, abs=0.08)
        _, sound_timeline = timeline(recorded(container, [(5, 7)]))
        assert sound_timeline.begin(0) == pytest.approx(0, abs=0.08)


@pytest.mark.parametrize("container", ["mp4", "matroska", "webm"])
def test_a_recording_that_was_paused(container: str) -> None:
    seconds, sound_timeline = timeline(recorded(container, [(1, 2), (5, 6), (20, 21)], video_s=0))
    assert seconds == pytest.approx(3, abs=0.1)
    for sound_s, played_s in ((0.5, 1.5), (1.5, 5.5), (2.5, 20.5)):
        assert sound_timeline.begin(sound_s) == pytest.approx(played_s, abs=0.1)
    assert sound_timeline.end(seconds) == pytest.approx(21, abs=0.1)


@pytest.mark.parametrize("container", ["wav", "mp3", "ogg", "flac"])
def test_sound_alone(container: str) -> None:
    seconds, sound_timeline = timeline(recorded(container, [(0, 2)]))
    assert sound_timeline.begin(0) == pytest.approx(0, abs=0.08)
    assert sound_timeline.end(seconds) == pytest.approx(seconds, abs=0.08)


def test_numbers() -> None:
    sound_timeline = Timeline()
    sound_timeline.place(0.0, -0.02)
    sound_timeline.place(1.0, 1.1)
    sound_timeline.place(2.0, 5.0)
    sound_timeline.place(3.0, 1.0)
    sound_timeline.place(4.0, 9.0)
    assert [sound_timeline.begin(at) for at in (0, 1, 2, 3, 4)] == [0, 1, 5, 6, 9]
    # A span that ends at the beginning of a gap ends before the gap.
    assert [sound_timeline.end(at) for at in (0, 2, 2.5, 4, 5)] == [0, 2, 5.5, 7, 10]


def test_gaps_in_short_succession() -> None:
    """Short gaps are merged. A forward pass for each would be far more work than the sound is
    worth.
    """
    sound_timeline = Timeline()
    for at in range(1000):
        sound_timeline.place(at * 0.5, at * 1.5)
    pieces = base._pieces(sound_timeline, 500 * 100, 100)
    assert len(pieces) < 70
    assert pieces[0].begin == 0
    assert pieces[-1].end == 500 * 100
    assert all(piece.end == other.begin for piece, other in pairwise(pieces))
    assert all(len(piece) >= 50 for piece in pieces)
