from stoker.wire.notices import MOST_NOTICE_CHARS, MOST_NOTICES, Notice, bounded


class TestBounded:
    def test_equal_notices_are_given_once_and_in_order(self):
        first, two = Notice("a", "First."), Notice("b", "Second.")
        assert bounded([first, two, first]) == [first, two]

    def test_too_many_and_too_long_ones_are_cut(self):
        notices = bounded(Notice("x" * 100, f"{number} " + "y" * 5000) for number in range(100))
        assert len(notices) == MOST_NOTICES
        assert all(len(notice.message) == MOST_NOTICE_CHARS for notice in notices)
        assert all(len(notice.code) <= 64 for notice in notices)

    def test_text_that_cannot_be_stored_or_encoded_is_replaced(self):
        [notice] = bounded([Notice("a", "half \ud83d of a pair\0")])
        assert notice.message == "half ? of a pair"
