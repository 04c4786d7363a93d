"""How long tests that make up their own inputs try: `STOKER_TEST_EXAMPLES` times the usual."""

import os

_GIVEN = os.environ.get("STOKER_TEST_EXAMPLES")
_TIMES = int(_GIVEN or "1")
ALWAYS_THE_SAME = _GIVEN is None
"""A change is not to fail by an input that nobody tried before: whoever asks for more looks for
those.
"""


def examples(number: int) -> int:
    """For Hypothesis' `max_examples`."""
    return number * _TIMES
