"""The child's end of a loop without a server: a line of JSON for each line of JSON."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def answer(loaded: Callable[[], Callable[[Any], Any]]) -> None:
    """Load, say that it is ready, and answer until the input ends."""
    # Libraries write where they like: what is theirs goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    run = loaded()
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers)
