"""docs/reliability.md agrees with the reports."""

from tools.reliability import PAGE, page


def test_page_is_what_the_reports_say():
    assert PAGE.read_text() == page(), "write it anew: python -m tools.reliability"
