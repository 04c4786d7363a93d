"""Errors for media from outside that cannot be served."""

from collections.abc import Generator
from contextlib import contextmanager


class MediaError(Exception):
    """An image, a sound or a video cannot be served. The message is for the client."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@contextmanager
def refusing(kind: str) -> Generator[None]:
    """Turns any error of a decoder into `MediaError`. `kind` names the medium, as in "image".

    Decoders document no closed set of errors, and damaged bytes reach their rarest code paths.
    Their messages may contain addresses and parts of the file, so they stay in the cause, for the
    log.
    """
    try:
        yield
    except MediaError:
        raise
    except MemoryError as error:
        raise MediaError(f"The {kind} is too large to be decoded.") from error
    except Exception as error:
        raise MediaError(
            f"The {kind} could not be decoded: it is damaged, cut short or of an unsupported kind."
        ) from error
