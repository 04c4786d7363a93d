"""Child side of a loop without a server: answers each line of JSON with a line of JSON."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def answer(loaded: Callable[[], Callable[[Any], Any]]) -> None:
    """Loads the model, reports readiness, and answers until the input ends."""
    # Libraries print to stdout, so their output goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    run = loaded()
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers)
