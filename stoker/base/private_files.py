"""Files that only their owner can read."""

import os
from pathlib import Path


def write_private(path: Path, content: str) -> None:
    """Writes a file that only the owner can read. The file is written completely or stays as it
    was.
    """
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
