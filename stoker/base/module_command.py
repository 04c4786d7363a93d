"""Command lines of processes that run one of our modules."""

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command line that runs a module with the interpreter of this process.

    `-P` keeps the working folder off the module path. Without it, a user's file such as `random.py`
    would replace a module of the standard library.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
