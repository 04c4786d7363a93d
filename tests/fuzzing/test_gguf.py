"""Headers of GGUF files with a damaged structure: the format's library reads each accepted file."""

import struct
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf as library
import numpy as np
from hypothesis import strategies as st

from stoker.inspection import InspectionError, inspect
from stoker.inspection.files import FileSet
from stoker.inspection.gguf import BLOCKS, GgufArray, GgufHeader, read_gguf
from tests.fuzzing.support import fuzz, python_memory
from tests.inspection.builders import GGUF_FIELDS, GGUF_TENSORS, PIPELINES, MemoryFiles

U32, STRING, ARRAY, U64 = 4, 8, 9, 10
FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
WIDE = st.sampled_from(
    [0, 1, 2, 3, 31, 33, 255, 1 << 16, 1 << 20, 1 << 31, 1 << 48, 1 << 63, (1 << 64) - 1]
)
KINDS = st.sampled_from([*FORMS, STRING, ARRAY, 13, 255, (1 << 32) - 1])
TEXTS = st.sampled_from(
    ["", "a", "é", "a\0b", "general.alignment", "blk.0.attn_q.weight", "x" * 64, "x" * 65]
)


@dataclass
class Text:
    data: bytes
    length: int | None = None
    """Claimed length in bytes. None means the actual length."""

    @property
    def written(self) -> bytes:
        length = len(self.data) if self.length is None else self.length
        return struct.pack("<Q", length) + self.data


@dataclass
class Entry:
    key: Text
    kind: int
    value: bytes


@dataclass
class Table:
    name: Text
    shape: tuple[int, ...]
    kind: int
    offset: int
    dimensions: int | None = None
    """Claimed number of dimensions. None means the actual number."""


@dataclass
class File:
    """Parts of a whole file. Each part may be wrong."""

    entries: list[Entry]
    tables: list[Table]
    magic: bytes = b"GGUF"
    version: int = 3
    counts: dict[str, int] = field(default_factory=dict[str, int])
    alignment: int = 32
    data: int = 0

    def parts(self) -> list[bytes]:
        """Returns the file, cut at each border of its structure."""
        chunks = [self.magic, struct.pack("<I", self.version)]
        chunks.append(struct.pack("<Q", self.counts.get("tables", len(self.tables))))
        chunks.append(struct.pack("<Q", self.counts.get("entries", len(self.entries))))
        for item in self.entries:
            chunks += [item.key.written, struct.pack("<I", item.kind), item.value]
        for item in self.tables:
            claimed = len(item.shape) if item.dimensions is None else item.dimensions
            chunks += [item.name.written, struct.pack("<I", claimed)]
            chunks += [struct.pack("<Q", number) for number in item.shape]
            chunks += [struct.pack("<I", item.kind), struct.pack("<Q", item.offset)]
        written = sum(map(len, chunks))
        return [*chunks, bytes(-written % self.alignment), bytes(max(self.data, 0))]


def value(given: Any) -> tuple[int, bytes]:
    """Returns the GGUF type of a value and its bytes."""
    if isinstance(given, bool):
        return 7, struct.pack("<?", given)
    if isinstance(given, int):
        return U32, struct.pack("<I", given)
    if isinstance(given, float):
        return 6, struct.pack("<f", given)
    if isinstance(given, str):
        return STRING, Text(given.encode()).written
    items = [value(item) for item in given]
    kind = items[0][0] if items else U32
    return ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(item for _, item in items)


def size(shape: tuple[int, ...], kind: int) -> int:
    _, numbers, block = BLOCKS.get(kind, ("", 1, 1))
    return int(np.prod(shape, dtype=object)) // numbers * block


def laid_out(file: File) -> File:
    """Returns the file with each tensor after the previous one, and with enough data for all of
    them.
    """
    end = 0
    tables: list[Table] = []
    for table in file.tables:
        begin = -(-end // file.alignment) * file.alignment
        tables.append(replace(table, offset=begin))
        end = begin + size(table.shape, table.kind)
    return replace(file, tables=tables, data=end)


def right(draw: st.DrawFn) -> File:
    entries = [Entry(Text(key.encode()), *value(content)) for key, content in GGUF_FIELDS.items()]
    tables = [Table(Text(name.encode()), *content, 0) for name, content in GGUF_TENSORS.items()]
    for at in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(sorted(BLOCKS)))
        shape = (
            BLOCKS[kind][1] * draw(st.integers(1, 2)),
            *draw(st.lists(st.integers(1, 3), max_size=3)),
        )
        tables.append(Table(Text(b"more.%d" % at), shape, kind, 0))
    alignment = draw(st.sampled_from([32, 32, 32, 1, 8, 64, 4096]))
    if alignment != 32:
        entries.insert(
            draw(st.integers(0, 9)), Entry(Text(b"general.alignment"), *value(alignment))
        )
    version = draw(st.sampled_from([3, 3, 2]))
    return laid_out(File(entries, tables, alignment=alignment, version=version))


def damaged(draw: st.DrawFn, file: File) -> File:
    """Changes one thing of the file."""
    kind = draw(
        st.sampled_from(["counts", "entry", "entries", "table", "tables", "offset", "data", "head"])
    )
    entries, tables = [*file.entries], [*file.tables]
    if kind == "counts":
        which = draw(st.sampled_from(["entries", "tables"]))
        actual = len(file.entries if which == "entries" else file.tables)
        return replace(file, counts={which: draw(WIDE | st.sampled_from([actual - 1, actual + 1]))})
    if kind == "head":
        swapped = st.just(replace(file, version=3 << 24))
        return draw(
            swapped
            | st.builds(
                replace, st.just(file), magic=st.sampled_from([b"GGUE", b"FUGG", b"\0" * 4])
            )
        )
    if kind == "data":
        return replace(file, data=file.data + draw(st.sampled_from([-1, 1, 31, 32, 64])))
    if kind == "entry" and entries:
        at = draw(st.integers(0, len(entries) - 1))
        entries[at] = _entry(draw, entries[at])
        return replace(file, entries=entries)
    if kind == "entries" and entries:
        entry = draw(st.sampled_from(entries))
        return replace(
            file, entries=draw(st.sampled_from([[*entries, entry], entries[1:], entries[::-1]]))
        )
    if not tables:
        return file
    at = draw(st.integers(0, len(tables) - 1))
    if kind == "tables":
        changed = draw(st.sampled_from([[*tables, tables[at]], tables[::-1], tables[1:] or tables]))
        return draw(
            st.sampled_from(
                [replace(file, tables=changed), laid_out(replace(file, tables=changed))]
            )
        )
    if kind == "offset":
        near = [
            0,
            tables[at].offset + 1,
            tables[at].offset + file.alignment,
            max(tables[at].offset - 32, 0),
        ]
        tables[at] = replace(tables[at], offset=draw(st.sampled_from(near) | WIDE))
        return replace(file, tables=tables)
    tables[at] = _table(draw, tables[at])
    changed = replace(file, tables=tables)
    again = laid_out(changed)
    return again if again.data < 1 << 16 and draw(st.booleans()) else changed


def _text(draw: st.DrawFn, text: Text) -> Text:
    other = draw(
        TEXTS.map(str.encode) | st.sampled_from([b"\xff", b"\xed\xa0\x80", b"x" * 257, text.data])
    )
    near = [None, len(other) + 1, max(len(other) - 1, 0)]
    return Text(other, draw(st.sampled_from(near) | WIDE))


def _entry(draw: st.DrawFn, one: Entry) -> Entry:
    kind = draw(st.sampled_from(["key", "kind", "value", "array", "alignment"]))
    if kind == "key":
        return replace(one, key=_text(draw, one.key))
    if kind == "kind":
        return replace(one, kind=draw(KINDS))
    if kind == "alignment":
        number = draw(WIDE | st.sampled_from([24, 32, 1 << 17]))
        form = draw(st.sampled_from([U32, 5, U64, 2]))
        bits = 8 * struct.calcsize(FORMS[form]) - 1
        return Entry(
            Text(b"general.alignment"), form, struct.pack(f"<{FORMS[form]}", number % (1 << bits))
        )
    if kind == "array":
        item, count = draw(KINDS), draw(WIDE | st.integers(0, 9))
        body = bytes(8 * min(count, 9)) + draw(st.sampled_from([b"", b"\0", bytes(8)]))
        return replace(one, kind=ARRAY, value=struct.pack("<IQ", item, count) + body)
    if one.kind == STRING:
        return replace(one, value=_text(draw, Text(one.value[8:])).written)
    return replace(one, value=draw(st.sampled_from([one.value[:-1], one.value + b"\0", b""])))


def _table(draw: st.DrawFn, one: Table) -> Table:
    kind = draw(st.sampled_from(["name", "kind", "shape", "dimensions"]))
    if kind == "name":
        return replace(one, name=_text(draw, one.name))
    if kind == "kind":
        return replace(
            one, kind=draw(st.sampled_from([*BLOCKS, 4, 9, 15, 24, 25, 31, 36, 41, 1 << 31]))
        )
    if kind == "dimensions":
        return replace(
            one, dimensions=draw(st.sampled_from([0, len(one.shape) + 1, 4, 5, 64, (1 << 32) - 1]))
        )
    shape = [*one.shape]
    at = draw(st.integers(0, len(shape)))
    shape[at : at + draw(st.integers(0, 1))] = [draw(WIDE)]
    return replace(one, shape=tuple(shape))


@st.composite
def files(draw: st.DrawFn) -> bytes:
    file = right(draw)
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))):
        file = damaged(draw, file)
    parts = file.parts()
    if draw(st.integers(0, 9)) == 0:
        parts = parts[: draw(st.integers(0, len(parts)))]
    return b"".join(parts)


def as_the_library_reads(data: bytes, header: GgufHeader) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(data)
        theirs = library.GGUFReader(path)
    tensors = {
        item.name: (item.shape.tolist(), item.tensor_type.name, item.n_elements, item.n_bytes)
        for item in theirs.tensors
    }
    assert tensors == {
        name: ([*item.shape], item.kind, item.numbers, item.end - item.begin)
        for name, item in header.tensors.items()
    }
    first = min(int(item.data_offset) for item in theirs.tensors)
    for item in theirs.tensors:
        assert int(item.data_offset) - first == header.tensors[item.name].begin
    fields = {key: item for key, item in theirs.fields.items() if not key.startswith("GGUF.")}
    assert fields.keys() == header.metadata.keys()
    for key, ours in header.metadata.items():
        contents = fields[key].contents()
        if isinstance(ours, GgufArray):
            assert len(contents) == ours.count
        else:
            # Compared by repr, because NaN is not equal to itself.
            assert repr(_plain(contents)) == repr(_plain(ours))


def _plain(given: Any) -> Any:
    return (
        [_plain(item) for item in given]
        if isinstance(given, list)
        else getattr(given, "item", lambda: given)()
    )


@fuzz(files(), examples=200)
def test_what_is_taken_the_library_reads_alike(data: bytes) -> bool:
    files_ = MemoryFiles({"m.gguf": data})
    try:
        with python_memory(64 * len(data) + (1 << 20)):
            header = read_gguf(FileSet(files_), "m.gguf")
    except InspectionError:
        accepted = False
    else:
        accepted = True
        as_the_library_reads(data, header)
    # The head, which contains the counts, is read twice. The last chunk may extend beyond the
    # header.
    assert files_.bytes_read <= 2 * len(data) + 32
    try:
        inspection = inspect(MemoryFiles({"m.gguf": data}), None, PIPELINES)
    except InspectionError:
        return accepted
    assert accepted
    assert 0 < inspection.weight_bytes <= len(data)
    return True


@fuzz(st.data(), examples=30)
def test_a_right_one_is_taken(data: st.DataObject) -> bool:
    file = right(data.draw)
    as_the_library_reads(
        whole := b"".join(file.parts()),
        read_gguf(FileSet(MemoryFiles({"m.gguf": whole})), "m.gguf"),
    )
    return True
