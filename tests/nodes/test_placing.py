"""Tests of the selection of a node for a lease or a call."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as some

from stoker.runtime.graphics import Graphics
from stoker.runtime.nodes.placing import Load, Place, chosen, least_busy, shares, why_none


def place(name: str, *, budget: int = 100, claimed: int = 0, leases: int = 0, files: bool = False):
    return Place(
        node_id=name,
        budget_bytes=budget,
        claimed_bytes=claimed,
        leases=leases,
        has_files=files,
    )


def test_the_emptiest_gets_it() -> None:
    assert chosen(10, [place("a", claimed=50), place("b", claimed=20)]) == "b"
    # Compared by the claimed fraction of the budget, not by the free bytes.
    assert chosen(10, [place("a", budget=1000, claimed=500), place("b", claimed=20)]) == "b"


def test_files_are_worth_more_than_room_but_no_eviction() -> None:
    has, empty = place("a", claimed=60, files=True), place("b")
    assert chosen(30, [has, empty]) == "a"
    assert chosen(50, [has, empty]) == "b"


def test_where_it_never_fits() -> None:
    small, large = place("a", budget=10), place("b", claimed=95)
    assert chosen(20, [small, large]) == "b"
    assert chosen(101, [small, large]) is None
    assert chosen(1, []) is None
    assert chosen(1 << 40, [place("a", budget=0)]) == "a"


def test_among_equals_the_one_with_fewer_leases() -> None:
    assert chosen(0, [place("a", leases=3), place("b", leases=2), place("c", leases=2)]) == "b"


def load(name: str, outstanding: int, ready: int = 1) -> Load:
    return Load(node_id=name, outstanding=outstanding, ready=ready)


def test_calls_go_to_the_least_busy() -> None:
    assert least_busy([load("a", 3), load("b", 2)]) == "b"
    assert least_busy([load("a", 3, ready=2), load("b", 2)]) == "a"
    # A node that still loads has few calls and answers none.
    assert least_busy([load("a", 9), load("b", 0, ready=0)]) == "a"
    assert least_busy([load("b", 0, ready=0)]) == "b"
    # A node that failed is avoided if another exists.
    failed = Load(node_id="a", outstanding=0, ready=0, has_failed=True)
    assert least_busy([failed, load("b", 3, ready=0)]) == "b"
    assert least_busy([failed]) == "a"


def test_what_begins_alike_goes_to_one_node_until_that_is_busy() -> None:
    names = [f"node-{number}" for number in range(8)]
    idle = [load(name, 0) for name in names]
    first = least_busy(idle, b"a conversation")
    assert all(least_busy(idle, b"a conversation") == first for _ in range(3))
    busy = [load(name, 5 if name == first else 0) for name in names]
    assert least_busy(busy, b"a conversation") != first
    almost = [load(name, 4 if name == first else 0) for name in names]
    assert least_busy(almost, b"a conversation") == first
    # After the loss of a node, keys of the other nodes stay on their nodes.
    keys = [f"conversation {number}".encode() for number in range(200)]
    before = {key: least_busy(idle, key) for key in keys}
    remaining = [node_load for node_load in idle if node_load.node_id != first]
    assert all(least_busy(remaining, key) == node for key, node in before.items() if node != first)
    # The 200 keys are spread over 8 nodes: each node has between 5 and 60.
    counts = [list(before.values()).count(name) for name in names]
    assert min(counts) >= 5
    assert max(counts) <= 60


@given(some.integers(0, 500), some.integers(1, 50))
def test_shares(total: int, parts: int) -> None:
    sizes = shares(total, parts)
    assert sum(sizes) == total
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


class TestGraphics:
    """Selection of nodes with graphics devices. `free` is the free memory of each device."""

    def with_devices(self, name: str, *free: int, claimed: int = 0) -> Place:
        return replace(place(name, claimed=claimed), devices=dict(enumerate(free)))

    def test_what_needs_one_comes_to_none_without(self) -> None:
        none, single = place("a"), self.with_devices("b", 50, claimed=90)
        assert chosen(20, [none, single], Graphics()) == "b"
        assert chosen(20, [none], Graphics()) is None
        assert chosen(20, [single], Graphics(index=1)) is None
        assert chosen(20, [single], Graphics(count=2)) is None
        two = self.with_devices("c", 50, 50, claimed=95)
        assert chosen(20, [single, two], Graphics(index=1)) == "c"
        assert chosen(20, [single, two], Graphics(count=2)) == "c"

    def test_where_the_device_has_room(self) -> None:
        full, free = self.with_devices("a", 10), self.with_devices("b", 30, claimed=70)
        assert chosen(20, [full, free], Graphics()) == "b"
        # If no device has room, an eviction is necessary and the emptiest node is chosen.
        assert chosen(40, [full, self.with_devices("b", 30, claimed=50)], Graphics()) == "a"

    def test_what_can_do_without_prefers_one_that_is_free(self) -> None:
        optional = Graphics(is_optional=True)
        none, free, full = place("a"), self.with_devices("b", 50), self.with_devices("c", 5)
        assert chosen(20, [none, free, full], optional) == "b"
        assert chosen(20, [none, full], optional) == "a"
        # But not a node that would have to evict a model for it.
        assert chosen(20, [none, self.with_devices("b", 50, claimed=90)], optional) == "a"

    def test_what_uses_none_leaves_them_to_others(self) -> None:
        none, single = place("b", claimed=50), self.with_devices("a", 50)
        assert chosen(20, [none, single]) == "b"
        assert chosen(60, [none, single]) == "a"

    def test_why_none(self) -> None:
        none, single = place("a"), self.with_devices("b", 50)
        assert why_none(20, [none], Graphics()) == "requires a GPU, but no node has one"
        two = why_none(20, [none, single], Graphics(count=2))
        assert two == "requires 2 GPUs, but no node has enough: set 'devices' to 1"
        instances = replace(self.with_devices("d", 50, 50, 50), parts=(1, 2))
        assert not instances.suits(Graphics(count=2)) and instances.suits(Graphics())
        assert why_none(20, [instances], Graphics(count=3)).endswith("set 'devices' to 1")
        assert "GPU 7" in why_none(20, [none, single], Graphics(index=7))
        for graphics in (None, Graphics(is_optional=True), Graphics()):
            assert "of memory" in why_none(200, [none, single], graphics)
