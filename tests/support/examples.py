"""Scales the number of generated inputs: `STOKER_TEST_EXAMPLES` multiplies the default."""

import os

_GIVEN = os.environ.get("STOKER_TEST_EXAMPLES")
_TIMES = int(_GIVEN or "1")
ALWAYS_THE_SAME = _GIVEN is None
"""True if generated inputs are the same in each run. A change must not fail on an input that was
never tried before. Setting `STOKER_TEST_EXAMPLES` searches for such inputs.
"""


def examples(number: int) -> int:
    """Returns the value for Hypothesis' `max_examples`."""
    return number * _TIMES
