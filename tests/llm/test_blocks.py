import random
from collections.abc import Sequence

import pytest

from stoker.models.llm.blocks import BlockCache

SIZE = 4


def whole(cache: BlockCache, identifier: int, tokens: list[int]) -> int:
    """Admits a sequence and computes all of it. Returns how many tokens were cached before."""
    cached = cache.admit(identifier, tokens)
    assert cached is not None
    assert cache.reserve(identifier, len(tokens))
    cache.computed(identifier, len(tokens))
    return cached


def numbers(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


class TestAdmit:
    def test_nothing_is_known_at_first(self) -> None:
        cache = BlockCache(8, SIZE)
        assert cache.admit(1, numbers(0, 9)) == 0
        assert list(cache.table(1)) == []
        assert cache.free == 8

    def test_the_same_beginning_is_shared(self) -> None:
        cache = BlockCache(8, SIZE)
        whole(cache, 1, numbers(0, 10))
        assert whole(cache, 2, [*numbers(0, 8), 99, 98]) == 8
        assert list(cache.table(2))[:2] == list(cache.table(1))[:2]
        assert cache.table(2)[2] != cache.table(1)[2]
        assert cache.free == 8 - 4

    def test_only_what_follows_the_same_blocks_is_the_same(self) -> None:
        cache = BlockCache(16, SIZE)
        whole(cache, 1, [*numbers(0, 4), *numbers(50, 4), 1])
        assert whole(cache, 2, [*numbers(50, 4), *numbers(50, 4), 1]) == 0
        assert whole(cache, 3, [*numbers(0, 4), *numbers(60, 4), 1]) == 4

    @pytest.mark.parametrize(
        ("length", "cached"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)]
    )
    def test_the_last_token_is_never_cached(self, length: int, cached: int) -> None:
        cache = BlockCache(16, SIZE)
        whole(cache, 1, numbers(0, 20))
        assert whole(cache, 2, numbers(0, length)) == cached

    def test_a_block_that_is_not_full_is_not_shared(self) -> None:
        cache = BlockCache(8, SIZE)
        whole(cache, 1, numbers(0, 7))
        assert whole(cache, 2, numbers(0, 12)) == 4

    def test_what_is_not_computed_is_not_shared(self) -> None:
        cache = BlockCache(8, SIZE)
        tokens = numbers(0, 12)
        assert cache.admit(1, tokens) == 0
        assert cache.reserve(1, 12)
        cache.computed(1, 7)
        assert cache.admit(2, tokens) == 4

    def test_what_was_drawn_is_shared(self) -> None:
        cache = BlockCache(8, SIZE)
        tokens = numbers(0, 5)
        whole(cache, 1, tokens)
        tokens += [70, 71, 72]
        assert cache.reserve(1, 8)
        cache.computed(1, 8)
        assert whole(cache, 2, [*tokens, 1]) == 8

    def test_none_without_room(self) -> None:
        cache = BlockCache(3, SIZE)
        whole(cache, 1, numbers(0, 8))
        assert cache.admit(2, numbers(100, 5)) is None
        assert cache.admit(2, numbers(100, 4)) == 0

    def test_shared_blocks_need_no_room(self) -> None:
        cache = BlockCache(3, SIZE)
        whole(cache, 1, numbers(0, 8))
        assert cache.admit(2, [*numbers(0, 8), 5, 6, 7, 8]) == 8
        assert cache.admit(3, [*numbers(0, 8), 5, 6, 7, 8, 9]) is None

    def test_idle_blocks_that_are_shared_are_no_room_for_the_rest(self) -> None:
        cache = BlockCache(3, SIZE)
        whole(cache, 1, numbers(0, 12))
        cache.release(1)
        assert cache.free == 3
        assert cache.admit(2, [*numbers(0, 8), *numbers(50, 5)]) is None
        assert cache.free == 3
        assert cache.admit(2, [*numbers(0, 8), *numbers(50, 4)]) == 8
        assert cache.free == 1

    def test_a_refusal_changes_nothing(self) -> None:
        cache = BlockCache(2, SIZE)
        whole(cache, 1, numbers(0, 5))
        cache.release(1)
        assert cache.admit(2, numbers(0, 9)) is None
        with pytest.raises(KeyError):
            cache.table(2)
        assert cache.free == 2
        assert whole(cache, 3, numbers(0, 8)) == 4


class TestReserve:
    def test_takes_what_is_missing(self) -> None:
        cache = BlockCache(4, SIZE)
        cache.admit(1, numbers(0, 3))
        for length, blocks in ((1, 1), (4, 1), (5, 2), (3, 2), (16, 4)):
            assert cache.reserve(1, length)
            assert len(cache.table(1)) == blocks
        assert sorted(cache.table(1)) == [0, 1, 2, 3]

    def test_false_changes_nothing(self) -> None:
        cache = BlockCache(4, SIZE)
        cache.admit(1, numbers(0, 3))
        assert cache.reserve(1, 4)
        assert not cache.reserve(1, 17)
        assert len(cache.table(1)) == 1
        assert cache.free == 3


class TestRelease:
    def test_what_was_computed_stays_known(self) -> None:
        cache = BlockCache(4, SIZE)
        whole(cache, 1, numbers(0, 9))
        before = list(cache.table(1))
        cache.release(1)
        assert cache.free == 4
        assert whole(cache, 2, numbers(0, 9)) == 8
        assert list(cache.table(2))[:2] == before[:2]

    def test_an_unknown_one_is_no_error(self) -> None:
        cache = BlockCache(4, SIZE)
        cache.release(7)
        assert cache.free == 4

    def test_shared_blocks_are_held_until_the_last_lets_go(self) -> None:
        cache = BlockCache(3, SIZE)
        whole(cache, 1, numbers(0, 8))
        whole(cache, 2, [*numbers(0, 8), 9])
        cache.release(1)
        assert cache.free == 0
        cache.release(2)
        assert cache.free == 3

    def test_the_longest_unused_goes_first(self) -> None:
        cache = BlockCache(6, SIZE)
        for identifier in (1, 2, 3):
            whole(cache, identifier, numbers(identifier * 100, 8))
        for identifier in (2, 1, 3):
            cache.release(identifier)
        whole(cache, 4, numbers(900, 8))
        cache.release(4)
        # Its blocks were taken from sequence 2, the first that was released.
        assert [self.known(cache, sequence) for sequence in (1, 2, 3)] == [8, 0, 8]

    def test_the_end_of_a_sequence_goes_before_its_beginning(self) -> None:
        cache = BlockCache(3, SIZE)
        whole(cache, 1, numbers(100, 12))
        cache.release(1)
        whole(cache, 2, [7])
        cache.release(2)
        assert self.known(cache, 1) == 8

    def test_use_makes_young(self) -> None:
        cache = BlockCache(5, SIZE)
        whole(cache, 1, numbers(100, 8))
        cache.release(1)
        whole(cache, 2, numbers(200, 8))
        cache.release(2)
        whole(cache, 3, numbers(100, 9))
        cache.release(3)
        whole(cache, 4, numbers(900, 8))
        cache.release(4)
        assert [self.known(cache, sequence) for sequence in (1, 2)] == [8, 4]

    def test_free_blocks_are_taken_before_known_ones(self) -> None:
        cache = BlockCache(4, SIZE)
        whole(cache, 1, numbers(100, 8))
        cache.release(1)
        whole(cache, 2, numbers(200, 8))
        cache.release(2)
        assert [self.known(cache, sequence) for sequence in (1, 2)] == [8, 8]

    def known(self, cache: BlockCache, identifier: int) -> int:
        """Returns how many tokens of a former sequence are still cached. Requests no more room than
        the cache has.
        """
        probe = 1000 + identifier
        cached = cache.admit(probe, [*numbers(identifier * 100, 8), 0])
        assert cached is not None
        cache.release(probe)
        return cached


class TestTwins:
    """Two sequences compute the same block at the same time."""

    def test_neither_loses_its_own(self) -> None:
        cache = BlockCache(8, SIZE)
        for identifier in (1, 2):
            assert cache.admit(identifier, numbers(0, 9)) == 0
            assert cache.reserve(identifier, 9)
        cache.computed(1, 9)
        cache.computed(2, 9)
        assert not set(cache.table(1)) & set(cache.table(2))
        assert cache.admit(3, numbers(0, 9)) == 8
        assert list(cache.table(3)) == list(cache.table(1))[:2]

    def test_all_is_free_afterwards(self) -> None:
        cache = BlockCache(8, SIZE)
        for identifier in (1, 2):
            cache.admit(identifier, numbers(0, 9))
            cache.reserve(identifier, 9)
        cache.computed(1, 9)
        cache.computed(2, 9)
        cache.release(1)
        assert cache.free == 8 - 3
        cache.release(2)
        assert cache.free == 8
        assert whole(cache, 3, numbers(0, 32)) == 8

    def test_they_go_on_as_one(self) -> None:
        """The second sequence's further blocks continue the first one's, which are the known
        blocks.
        """
        cache = BlockCache(8, SIZE)
        long = numbers(0, 12)
        for identifier in (1, 2):
            cache.admit(identifier, long)
            cache.reserve(identifier, 12)
        cache.computed(1, 4)
        cache.computed(2, 12)
        assert cache.admit(3, [*long, 1]) == 12
        first, second = list(cache.table(1)), list(cache.table(2))
        assert list(cache.table(3)) == [first[0], *second[1:]]

    def test_one_may_go_while_the_other_goes_on(self) -> None:
        cache = BlockCache(4, SIZE)
        for identifier in (1, 2):
            cache.admit(identifier, numbers(0, 8))
            cache.reserve(identifier, 8)
        cache.computed(1, 8)
        cache.computed(2, 4)
        cache.release(1)
        # Reuse removes the blocks of sequence 1 from the known blocks only.
        assert cache.admit(3, numbers(50, 8)) == 0
        assert cache.reserve(3, 8)
        cache.computed(2, 8)
        assert not set(cache.table(2)) & set(cache.table(3))
        cache.release(2)
        cache.release(3)
        assert cache.free == 4


class Naive:
    """The guarantees of `BlockCache`, kept by a comparison of whole prefixes."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.prefix: dict[int, tuple[int, ...]] = {}
        """Maps a block to the tokens up to its end, as last filled by any sequence."""
        self.tables: dict[int, list[int]] = {}

    def held(self) -> set[int]:
        return {block for table in self.tables.values() for block in table}

    def check_shared(self, tokens: Sequence[int], table: Sequence[int], cached: int) -> None:
        assert cached % SIZE == 0
        assert len(table) == cached // SIZE
        for place, block in enumerate(table):
            assert self.prefix[block] == tuple(tokens[: (place + 1) * SIZE])


@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_of_calls_keeps_the_promises(seed: int) -> None:
    chance = random.Random(seed)
    blocks = chance.choice([3, 7, 20])
    cache, naive = BlockCache(blocks, SIZE), Naive(blocks)
    tokens: dict[int, list[int]] = {}
    done: dict[int, int] = {}
    hits = refused = 0
    for identifier in range(4000):
        match chance.choice(["admit", "compute", "compute", "compute", "draw", "release"]):
            case "admit":
                # Nearly always the same token, so beginnings are often the same.
                prompt = [int(chance.random() < 0.1) for _ in range(chance.randint(1, 5 * SIZE))]
                free = cache.free
                cached = cache.admit(identifier, prompt)
                if cached is None:
                    refused += 1
                    assert cache.free == free
                    assert -(-len(prompt) // SIZE) > blocks - len(naive.held())
                else:
                    hits += cached > 0
                    assert cached < len(prompt)
                    naive.check_shared(prompt, cache.table(identifier), cached)
                    tokens[identifier], done[identifier] = prompt, cached
            case "compute" if tokens:
                sequence = chance.choice(list(tokens))
                length = min(len(tokens[sequence]), done[sequence] + chance.randint(1, 2 * SIZE))
                if length > done[sequence] and cache.reserve(sequence, length):
                    before = done[sequence]
                    done[sequence] = length
                    for place in range(before // SIZE, length // SIZE):
                        block = cache.table(sequence)[place]
                        holders = [other for other in tokens if block in cache.table(other)]
                        assert holders == [sequence], "a block is written to that another holds"
                        naive.prefix[block] = tuple(tokens[sequence][: (place + 1) * SIZE])
                    if length % SIZE:
                        naive.prefix.pop(cache.table(sequence)[length // SIZE], None)
                    cache.computed(sequence, length)
            case "draw" if tokens:
                sequence = chance.choice(list(tokens))
                if done[sequence] == len(tokens[sequence]):
                    tokens[sequence].append(int(chance.random() < 0.1))
            case "release" if tokens:
                sequence = chance.choice(list(tokens))
                cache.release(sequence)
                del tokens[sequence], done[sequence]
            case _:
                pass
        naive.tables = {sequence: list(cache.table(sequence)) for sequence in tokens}
        assert cache.free == blocks - len(naive.held())
        assert cache.usage == len(naive.held()) / blocks
        for sequence, table in naive.tables.items():
            assert len(set(table)) == len(table), "a sequence holds a block twice"
            for place in range(done[sequence] // SIZE):
                expected = tuple(tokens[sequence][: (place + 1) * SIZE])
                assert naive.prefix[table[place]] == expected, "a block was taken from its holder"
    assert hits > 20
    assert refused > 20
    for sequence in list(tokens):
        cache.release(sequence)
    assert cache.free == blocks
    cache.admit(10_000, [5] * blocks * SIZE)
    assert cache.reserve(10_000, blocks * SIZE)
    assert sorted(cache.table(10_000)) == list(range(blocks))
