"""Blobs: bytes under keys that the server chooses, in a folder or a bucket."""

from stoker.store.blobs.folder import UNFINISHED, Folder
from stoker.store.blobs.interface import (
    BlobLostError,
    BlobPart,
    Blobs,
    BlobWriter,
    FileReader,
    Files,
    ListedBlob,
    PartOfFile,
    StoreUnavailableError,
    WholeFile,
    list_key,
    part_key,
)
from stoker.store.blobs.opening import is_local, open_blobs

__all__ = [
    "UNFINISHED",
    "BlobLostError",
    "BlobPart",
    "BlobWriter",
    "Blobs",
    "FileReader",
    "Files",
    "Folder",
    "ListedBlob",
    "PartOfFile",
    "StoreUnavailableError",
    "WholeFile",
    "is_local",
    "list_key",
    "open_blobs",
    "part_key",
]
