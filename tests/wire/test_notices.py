from stoker.wire.notices import MOST_NOTICE_CHARS, MOST_NOTICES, Notice, bounded


class TestBounded:
    def test_equal_notices_are_given_once_and_in_order(self):
        one, two = Notice("a", "First."), Notice("b", "Second.")
        assert bounded([one, two, one]) == [one, two]

    def test_too_many_and_too_long_ones_are_cut(self):
        found = bounded(Notice("x" * 100, f"{number} " + "y" * 5000) for number in range(100))
        assert len(found) == MOST_NOTICES
        assert all(len(one.message) == MOST_NOTICE_CHARS for one in found)
        assert all(len(one.code) <= 64 for one in found)

    def test_text_that_cannot_be_stored_or_encoded_is_replaced(self):
        [found] = bounded([Notice("a", "half \ud83d of a pair\0")])
        assert found.message == "half ? of a pair"
