"""Recognises a file's container by its first bytes.

FFmpeg's own probing also knows playlists, session descriptions and image lists. Their demuxers open
the files and addresses that they name. So a container is named before the file is opened, and only
containers that hold their own content are named here.
"""

from collections.abc import Iterator

from stoker.media.errors import MediaError

_IMAGE_BRANDS = frozenset({b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1"})
_QUICKTIME_BOXES = frozenset({b"moov", b"mdat", b"wide", b"free", b"skip"})
_MOST_TABLE_ENTRIES = 1 << 24
"""Maximum number of table entries: far more packets than a file within the limits has, and 400 MB
of FFmpeg's index.
"""

AUDIO = frozenset({"wav", "flac", "ogg", "mp3", "aac", "mov", "matroska"})
VIDEO = frozenset({"mov", "matroska", "avi", "gif"})

_NAMES = {
    "aac": "AAC",
    "avi": "AVI",
    "flac": "FLAC",
    "gif": "GIF",
    "matroska": "Matroska and WebM",
    "mov": "MP4, M4A and MOV",
    "mp3": "MP3",
    "ogg": "Ogg",
    "wav": "WAV",
}
"""Maps FFmpeg's names of demuxers to the common names of the formats."""

# No protocol has this name. A demuxer reads only the bytes that it receives. The whitelists also
# bind demuxers that it starts, such as the one that AVI starts for subtitles by probing them.
_NO_PROTOCOL = "none"


def container(data: bytes | memoryview, allowed: frozenset[str], kind: str) -> str:
    """Returns FFmpeg's name of the demuxer for a file, one of `allowed`.

    Raises `MediaError` for every other file, and for an MP4 with tables that claim more than a file
    can hold.
    """
    name = _sniff(bytes(data[:64]), data)
    if name not in allowed:
        known = ", ".join(sorted(_NAMES[demuxer] for demuxer in allowed))
        raise MediaError(f"The {kind} has an unsupported format. Supported formats: {known}.")
    if name == "mov":
        _check_tables(memoryview(data), kind)
    return name


def is_video(data: bytes | memoryview) -> bool:
    """True if a file is a video and not an image. A GIF may be either and counts as an image."""
    return _sniff(bytes(data[:64]), data) in VIDEO - {"gif"}


def options(demuxer: str, codecs: str) -> dict[str, str]:
    """Returns FFmpeg's options that confine a file to one demuxer and to the named decoders."""
    return {
        "format_whitelist": demuxer,
        "codec_whitelist": codecs,
        "protocol_whitelist": _NO_PROTOCOL,
    }


def _sniff(head: bytes, data: bytes | memoryview) -> str | None:  # noqa: PLR0911
    if head[:4] in (b"RIFF", b"RF64", b"RIFX"):
        return {b"WAVE": "wav", b"AVI ": "avi"}.get(head[8:12])
    if head.startswith(b"ID3"):
        return _sniff(_after_id3(head, data), b"") or "mp3"
    if head[4:8] == b"ftyp":
        return None if head[8:12] in _IMAGE_BRANDS else "mov"
    if head[4:8] in _QUICKTIME_BOXES:
        return "mov"
    for magic, name in _MAGICS.items():
        if head.startswith(magic):
            return name
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        # MPEG audio: layer III is MP3. The unused layer number marks an ADTS stream of AAC.
        return {0b01: "mp3", 0b00: "aac"}.get(head[1] >> 1 & 0b11)
    return None


_MAGICS = {
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"\x1a\x45\xdf\xa3": "matroska",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
}


def _after_id3(head: bytes, data: bytes | memoryview) -> bytes:
    """Returns the first bytes after an ID3v2 tag. The tag's size is in four groups of seven
    bits.
    """
    size = 0
    for byte in head[6:10]:
        size = size << 7 | byte & 0x7F
    return bytes(data[10 + size : 74 + size])


def _check_tables(data: memoryview, kind: str) -> None:
    """Rejects absurd counts in tables that name a count and store nothing per entry.

    FFmpeg builds its index, 24 bytes per entry, from the count in `stsz` (when all samples have one
    size) and in `trun` (when they have the defaults). So twenty bytes would cost gigabytes.
    """
    for box in _boxes(data, kind):
        for name, offset in ((b"stsz", 12), (b"trun", 8)):
            at = box.find(name)
            while at >= 0:
                count = int.from_bytes(box[at + offset : at + offset + 4], "big")
                if count > _MOST_TABLE_ENTRIES:
                    raise MediaError(f"The {kind} declares more samples than are accepted.")
                at = box.find(name, at + 4)


def _boxes(data: memoryview, kind: str) -> Iterator[bytes]:
    """Yields the outermost boxes of an MP4, without those of media data, which are not
    structure.
    """
    at = 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        name = bytes(data[at + 4 : at + 8])
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size == 0:
            size = len(data) - at
        if size < 8:
            raise MediaError(f"The {kind} is damaged.")
        if name != b"mdat":
            yield bytes(data[at : at + size])
        at += size
