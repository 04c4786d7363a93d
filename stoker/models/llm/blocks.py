"""Who holds which blocks of a paged key-value cache, and which prompts are in it already.

The cache is an array of blocks of a fixed number of tokens; a sequence has a table of the blocks
that hold it. A full block is known by its tokens and by the block before it, so that a later
sequence that begins alike shares it. Blocks that nobody holds stay as they are until they are
needed: the longest unused goes first. The method is that of https://arxiv.org/abs/2309.06180, with
the prefix look-up that vLLM and SGLang have.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

_Key = tuple[int | str, tuple[int, ...]]
"""The name of the block before, or of the kind (see `BlockCache.admit`), and the block's tokens."""


@dataclass(eq=False)
class _Table:
    blocks: list[int] = field(default_factory=list[int])
    tokens: Sequence[int] = ()
    """Grows as the sequence does: it is the owner's own list."""
    named: int = 0
    """Leading blocks that are known by their content."""
    last_name: int | str = ""


class BlockCache:
    """Bookkeeping only: whoever computes keeps the arrays."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._free = list(range(blocks - 1, -1, -1))
        self._holders: dict[int, int] = {}
        """Block → how many sequences hold it."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Blocks with known content that nobody holds, the longest unused first."""
        self._by_key: dict[_Key, tuple[int, int]] = {}
        """→ the block's number and its name, which is never given twice."""
        self._key_of: dict[int, _Key] = {}
        self._tables: dict[int, _Table] = {}
        self._names = 0

    @property
    def free(self) -> int:
        """Blocks that can be had."""
        return len(self._free) + len(self._idle)

    @property
    def usage(self) -> float:
        """The share of the blocks that sequences hold."""
        return len(self._holders) / (len(self._holders) + self.free)

    def table(self, identifier: int) -> Sequence[int]:
        return self._tables[identifier].blocks

    def admit(
        self, identifier: int, tokens: Sequence[int], *, anew: bool = False, kind: str = ""
    ) -> int | None:
        """Take a sequence; how many of its leading tokens are computed. None: no room for the rest.

        Args:
            tokens: kept, not copied: what is appended to it belongs to the sequence.
            anew: it shares no blocks.
            kind: it shares blocks with sequences of the same kind only: the same tokens come to
                other keys and values with an adapter.
        """
        table = _Table(tokens=tokens, last_name=kind)
        shared = [] if anew else self._shared(tokens, kind)
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
        """Have blocks for so many tokens; False where there are none left."""
        blocks = self._tables[identifier].blocks
        missing = self._count(length) - len(blocks)
        if missing > self.free:
            return False
        blocks.extend(self._take() for _ in range(missing))
        return True

    def computed(self, identifier: int, length: int) -> None:
        """So many leading tokens of a sequence are computed: others may share their full blocks."""
        table = self._tables[identifier]
        size = self.block_tokens
        while (table.named + 1) * size <= length:
            place = table.named
            key = (table.last_name, tuple(table.tokens[place * size : (place + 1) * size]))
            block = table.blocks[place]
            if known := self._by_key.get(key):
                # Another sequence computed the same meanwhile: its block stays the known one.
                table.last_name = known[1]
            else:
                self._names += 1
                self._by_key[key] = block, self._names
                self._key_of[block] = key
                table.last_name = self._names
            table.named += 1

    def release(self, identifier: int) -> None:
        """Let a sequence's blocks go; what they hold stays known as long as it can."""
        table = self._tables.pop(identifier, None)
        # The end of a sequence is shared least: it goes first.
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
        """The known blocks that a sequence begins with; its last token is left to compute."""
        found: list[tuple[int, int]] = []
        name: int | str = kind
        size = self.block_tokens
        for start in range(0, len(tokens) - size, size):
            known = self._by_key.get((name, tuple(tokens[start : start + size])))
            if known is None:
                break
            found.append(known)
            name = known[1]
        return found

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
