"""Stop strings end a text at the same place wherever its pieces end, as a search of it all does."""

from hypothesis import strategies as st

from stoker.models.chat.answers.detokenizing import Stops
from tests.fuzzing.support import cuts, fuzz, pieces

# So few letters that beginnings of one stop string are ends of another.
LETTERS = st.sampled_from(["a", "b", "ab", "ba", "aab", "\n", "é", "e\u0301", "😀", "\0"])
WORDS = st.lists(LETTERS, max_size=5).map("".join)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Stop strings, and a text in pieces that holds them, their beginnings and their ends."""
    strings = draw(st.lists(WORDS, max_size=4))
    parts = st.sampled_from([*strings, "x"]) if strings else st.just("x")
    halves = parts.flatmap(lambda one: st.integers(0, len(one)).map(lambda at: one[:at]))
    ends = parts.flatmap(lambda one: st.integers(0, len(one)).map(lambda at: one[at:]))
    text = "".join(draw(st.lists(LETTERS | halves | ends | parts, max_size=12)))
    return strings, pieces(text, draw(cuts(len(text))))


def searched(strings: list[str], text: str) -> tuple[str, bool]:
    """Of the whole text: up to the stop string that is complete first, the longest of such."""
    for end in range(1, len(text) + 1):
        found = [one for one in strings if one and text[:end].endswith(one)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@fuzz(cases(), examples=300)
def test_cut_at_the_first_wherever_the_pieces_end(case: tuple[list[str], list[str]]) -> bool:
    strings, parts = case
    stops = Stops(strings)
    given, read = "", ""
    found = False
    longest = max([len(one) for one in strings] or [0])
    for part in parts:
        text, found = stops.add(part)
        given, read = given + text, read + part
        if found:
            break
        # No more is held back than may yet become a stop string.
        assert len(read) - len(given) < max(longest, 1)
    given += stops.finish()
    assert (given, found) == searched(strings, "".join(parts))
    return found
