"""Tracks which sequences hold the blocks of a paged key-value cache, and which prompts it contains.

The cache is an array of blocks with a fixed number of tokens. Each sequence has a table of its
blocks. A full block is identified by its tokens and the preceding block, so a later sequence with
the same beginning shares it. Blocks without a holder keep their content until they are needed; the
least recently used is reused first. The method is from https://arxiv.org/abs/2309.06180, with the
prefix lookup of vLLM and SGLang.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

_Key = tuple[int | str, tuple[int, ...]]
"""Name of the preceding block or of the kind (see `BlockCache.admit`), and the block's tokens."""


@dataclass(eq=False)
class _BlockTable:
    blocks: list[int] = field(default_factory=list[int])
    tokens: Sequence[int] = ()
    """The owner's list itself. It grows with the sequence."""
    named: int = 0
    """Number of leading blocks that are known by their content."""
    last_name: int | str = ""


class BlockCache:
    """Bookkeeping of the blocks of a paged cache. The caller keeps the arrays."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._free = list(range(blocks - 1, -1, -1))
        self._holders: dict[int, int] = {}
        """Maps a block to the number of sequences that hold it."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Blocks with known content and no holder, least recently used first."""
        self._by_key: dict[_Key, tuple[int, int]] = {}
        """Maps a key to the block's number and its name. Names are never reused."""
        self._key_of: dict[int, _Key] = {}
        self._tables: dict[int, _BlockTable] = {}
        self._names = 0

    @property
    def free(self) -> int:
        """Number of available blocks."""
        return len(self._free) + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold."""
        return len(self._holders) / (len(self._holders) + self.free)

    def table(self, identifier: int) -> Sequence[int]:
        return self._tables[identifier].blocks

    def admit(
        self, identifier: int, tokens: Sequence[int], *, fresh: bool = False, kind: str = ""
    ) -> int | None:
        """Admits a sequence and returns how many of its leading tokens are already computed.

        Returns None if the cache has no room for the rest.

        Args:
            tokens: kept by reference, not copied. Tokens appended later belong to the sequence.
            fresh: if True, the sequence shares no blocks.
            kind: restricts sharing to sequences of the same kind. With an adapter, the same tokens
                have different keys and values.
        """
        table = _BlockTable(tokens=tokens, last_name=kind)
        shared = [] if fresh else self._shared(tokens, kind)
        missing = self._count(len(tokens)) - len(shared)
        if missing > self.free - sum(block in self._idle for block, _ in shared):
            return None
        for block, name in shared:
            self._hold(block)
            table.blocks.append(block)
            table.last_name = name
        table.named = len(shared)
        self._tables[identifier] = table
        return len(shared) * self.block_tokens

    def reserve(self, identifier: int, length: int) -> bool:
        """Reserves blocks for `length` tokens. Returns False if too few blocks are free."""
        blocks = self._tables[identifier].blocks
        missing = self._count(length) - len(blocks)
        if missing > self.free:
            return False
        blocks.extend(self._take() for _ in range(missing))
        return True

    def computed(self, identifier: int, length: int) -> None:
        """Records that the first `length` tokens are computed. Other sequences may then share their
        full blocks.
        """
        table = self._tables[identifier]
        size = self.block_tokens
        while (table.named + 1) * size <= length:
            place = table.named
            key = (table.last_name, tuple(table.tokens[place * size : (place + 1) * size]))
            block = table.blocks[place]
            if known := self._by_key.get(key):
                # Another sequence computed the same block meanwhile. Its block stays the known one.
                table.last_name = known[1]
            else:
                self._names += 1
                self._by_key[key] = block, self._names
                self._key_of[block] = key
                table.last_name = self._names
            table.named += 1

    def release(self, identifier: int) -> None:
        """Releases a sequence's blocks. Their content stays known until they are reused."""
        table = self._tables.pop(identifier, None)
        # The end of a sequence is the least shared, so its blocks are reused first.
        for block in reversed(table.blocks if table else []):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            del self._holders[block]
            if block in self._key_of:
                self._idle[block] = None
            else:
                self._free.append(block)

    def _shared(self, tokens: Sequence[int], kind: str) -> list[tuple[int, int]]:
        """Returns the known blocks at the beginning of a sequence. The last token always stays to
        be computed.
        """
        blocks: list[tuple[int, int]] = []
        name: int | str = kind
        size = self.block_tokens
        for start in range(0, len(tokens) - size, size):
            known = self._by_key.get((name, tuple(tokens[start : start + size])))
            if known is None:
                break
            blocks.append(known)
            name = known[1]
        return blocks

    def _count(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _hold(self, block: int) -> None:
        self._idle.pop(block, None)
        self._holders[block] = self._holders.get(block, 0) + 1

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            del self._by_key[self._key_of.pop(block)]
        self._hold(block)
        return block
