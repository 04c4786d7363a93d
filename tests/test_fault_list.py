"""docs/faults.md lists the tests of each fault, and every fault is tested."""

from tools.faults import FAULTS, MARKER, PAGE, page
from tools.marks import marked


def test_every_fault_is_tried_and_there_is_no_other():
    assert set(marked(MARKER)) == set(FAULTS)


def test_page_is_what_the_marks_say():
    assert PAGE.read_text() == page(), "write the page: python -m tools.faults"
