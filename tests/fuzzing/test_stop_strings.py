"""Stop strings end a text at the same place for any division into pieces, as a search of the whole
text does.
"""

from hypothesis import strategies as st

from stoker.models.chat.answers.detokenizing import Stops
from tests.fuzzing.support import cuts, fuzz, pieces

# Few letters, so that the start of one stop string is the end of another.
LETTERS = st.sampled_from(["a", "b", "ab", "ba", "aab", "\n", "é", "e\u0301", "😀", "\0"])
WORDS = st.lists(LETTERS, max_size=5).map("".join)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Draws stop strings, and a text in pieces that contains them, their starts and their ends."""
    strings = draw(st.lists(WORDS, max_size=4))
    parts = st.sampled_from([*strings, "x"]) if strings else st.just("x")
    halves = parts.flatmap(lambda word: st.integers(0, len(word)).map(lambda at: word[:at]))
    ends = parts.flatmap(lambda word: st.integers(0, len(word)).map(lambda at: word[at:]))
    text = "".join(draw(st.lists(LETTERS | halves | ends | parts, max_size=12)))
    return strings, pieces(text, draw(cuts(len(text))))


def searched(strings: list[str], text: str) -> tuple[str, bool]:
    """Searches the whole text. Returns the text before the first complete stop string (the longest,
    if several end there), and whether one was found.
    """
    for end in range(1, len(text) + 1):
        matches = [string for string in strings if string and text[:end].endswith(string)]
        if matches:
            return text[: end - max(map(len, matches))], True
    return text, False


@fuzz(cases(), examples=300)
def test_cut_at_the_first_wherever_the_pieces_end(case: tuple[list[str], list[str]]) -> bool:
    strings, parts = case
    stops = Stops(strings)
    released, read = "", ""
    is_stopped = False
    longest = max([len(string) for string in strings] or [0])
    for part in parts:
        text, is_stopped = stops.add(part)
        released, read = released + text, read + part
        if is_stopped:
            break
        # Only text that may still become a stop string is withheld.
        assert len(read) - len(released) < max(longest, 1)
    released += stops.finish()
    assert (released, is_stopped) == searched(strings, "".join(parts))
    return is_stopped
