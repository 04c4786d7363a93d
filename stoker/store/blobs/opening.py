"""Which store a server's blobs are in."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from stoker.store.blobs.folder import Folder
from stoker.store.blobs.interface import Blobs


def is_local(url: str | None) -> bool:
    """Whether it is a folder of this machine."""
    return url is None or url.startswith("file:")


def open_blobs(url: str | None, data_dir: Path, *, timeout_s: float) -> Blobs:
    """What a URL names: `file:///…` a folder, nothing the one in the data folder, `s3://…` and the
    like a bucket.

    Raises:
        ValueError: there can be no such bucket, or no credentials for it.
    """
    if url is None:
        return Folder(data_dir / "blobs")
    if is_local(url):
        return Folder(Path(unquote(urlsplit(url).path)))
    # Its part of the library is not needed elsewhere.
    from stoker.store.blobs.bucket import Bucket

    return Bucket(url, data_dir / "spool", timeout_s=timeout_s)
