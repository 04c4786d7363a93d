"""Blobs: bytes under keys that the server chooses, in a folder or a bucket."""

from stoker.store.blobs.folder import Folder
from stoker.store.blobs.interface import (
    BlobLostError,
    Blobs,
    FileReader,
    Files,
    Listed,
    Part,
    PartOfFile,
    StoreUnavailableError,
    WholeFile,
    list_key,
    part_key,
)
from stoker.store.blobs.opening import is_local, open_blobs

__all__ = [
    "BlobLostError",
    "Blobs",
    "FileReader",
    "Files",
    "Folder",
    "Listed",
    "Part",
    "PartOfFile",
    "StoreUnavailableError",
    "WholeFile",
    "is_local",
    "list_key",
    "open_blobs",
    "part_key",
]
