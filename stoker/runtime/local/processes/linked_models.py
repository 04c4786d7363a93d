"""Links the files of a model into the folder that a prepared worker may read."""

import os
from pathlib import Path

_MOST_FILES = 1000
"""Maximum number of files of a model. A model has some dozens."""


def link_model(model: Path, folder: Path) -> None:
    """Creates hard links to all files of a model. Follows symbolic links.

    Raises `OSError` if a file is on another file system or may not be linked, or if the files are
    too many.
    """
    count = 0
    for place, _, names in os.walk(model, followlinks=True):
        target = folder / Path(place).relative_to(model)
        target.mkdir(exist_ok=True)
        for name in names:
            count += 1
            if count > _MOST_FILES:
                raise OSError(f"{model} has more than {_MOST_FILES} files")
            source = os.path.realpath(Path(place, name))
            if Path(source).is_file():
                (target / name).hardlink_to(source)
