"""Opens the blob store of a server."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from stoker.store.blobs.folder import Folder
from stoker.store.blobs.interface import Blobs


def is_local(url: str | None) -> bool:
    """Returns True if the store is a folder of this machine."""
    return url is None or url.startswith("file:")


def open_blobs(url: str | None, data_dir: Path, *, timeout_s: float) -> Blobs:
    """Opens the store of a URL: `file:///…` is a folder, `s3://…` and similar a bucket. None is the
    folder in the data folder.

    Raises:
        ValueError: the URL is not a valid bucket, or its credentials are missing.
    """
    if url is None:
        return Folder(data_dir / "blobs")
    if is_local(url):
        return Folder(Path(unquote(urlsplit(url).path)))
    # Imported here because only a bucket needs this part of the library.
    from stoker.store.blobs.bucket import Bucket

    return Bucket(url, data_dir / "spool", timeout_s=timeout_s)
