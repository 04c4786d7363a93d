"""Table of cases: the requests to Ray for the existing leases."""

from dataclasses import replace

from stoker.runtime.ray.reconcile import (
    MISSING_S,
    OVERDUE_S,
    UNIT,
    WAITING_S,
    Create,
    Group,
    LeaseRow,
    PlacementPlan,
    RayNode,
    Reconciler,
)

A, B = (
    RayNode(node_id="a", memory_bytes=4 * UNIT, is_there=True),
    RayNode(node_id="b", memory_bytes=4 * UNIT, is_there=True),
)
BOTH = [A, B]


def row(generation: int, node_id: str | None = None, units: float = 1, **more: object) -> LeaseRow:
    made = LeaseRow(
        generation=generation,
        spec_id=f"spec{generation}",
        node_id=node_id,
        memory_bytes=int(units * UNIT),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def group(generation: int, node_id: str | None, units: int = 1, name: str = "") -> Group:
    return Group(
        id=name or f"group{generation}",
        generation=generation,
        size=units * UNIT,
        node_id=node_id,
    )


def plan(
    rows: list[LeaseRow], groups: list[Group], places: list[RayNode] | None = None, now: float = 0
) -> PlacementPlan:
    return Reconciler().plan(rows, groups, BOTH if places is None else places, now)


def test_nothing_to_do() -> None:
    assert plan([], []) == PlacementPlan()
    result = plan([row(1, "a")], [group(1, "a")])
    assert result == PlacementPlan()
    assert not result.has_changes


def test_a_group_for_each_lease_in_whole_units() -> None:
    result = plan([row(1, units=0.1), row(2, units=1.5, prefers="b"), row(3, prefers="gone")], [])
    assert result.create == [
        Create(generation=1, size=UNIT),
        Create(generation=2, size=2 * UNIT, prefers="b"),
        Create(generation=3, size=UNIT),
    ]


def test_what_ray_has_placed_is_written_down() -> None:
    assert plan([row(1)], [group(1, "b")]) == PlacementPlan(place={1: "b"})


def test_a_node_whose_host_is_not_there_is_waited_for() -> None:
    places = [replace(A, is_there=False), replace(B, is_there=False)]
    assert plan([row(1)], [group(1, "a")], places) == PlacementPlan()


def test_one_whose_host_is_there_is_better() -> None:
    places = [replace(A, is_there=False), B]
    elsewhere = Create(generation=1, size=UNIT, not_on=("a",))
    assert plan([row(1)], [], places).create == [elsewhere]
    assert plan([row(1)], [group(1, "a")], places) == PlacementPlan(
        create=[elsewhere], remove=["group1"]
    )


def test_a_second_one_goes_elsewhere() -> None:
    second = row(2, spec_id="spec1")
    assert plan([row(1, "a"), second], [group(1, "a")]).create == [
        Create(generation=2, size=UNIT, not_on=("a",))
    ]


def test_two_that_were_asked_for_at_once_do_not_share_a_node() -> None:
    two = [row(1), row(2, spec_id="spec1")]
    result = plan(two, [group(1, "a"), group(2, "a")])
    assert result.place == {1: "a"}
    assert result.remove == ["group2"]
    assert result.create == [Create(generation=2, size=UNIT, not_on=("a",))]


def test_a_group_without_a_lease_is_removed() -> None:
    result = plan([row(1, "a")], [group(1, "a"), group(2, "b"), group(3, None)])
    assert result.remove == ["group2", "group3"]


def test_a_lease_that_takes_more_gets_a_larger_group_where_it_is() -> None:
    result = plan([row(1, "a", 3)], [group(1, "a", 2)])
    assert result.create == [Create(generation=1, size=3 * UNIT, on="a")]
    assert result.remove == ["group1"]
    # A lease keeps its group if the node has no room for more.
    full = plan([row(1, "a", 3), row(2, "a", 2)], [group(1, "a", 2), group(2, "a", 2)])
    assert full == PlacementPlan()
    # The memory that one lease releases is available to another.
    smaller = plan([row(1, "a", 1), row(2, "a", 3)], [group(1, "a", 2), group(2, "a", 2)])
    assert smaller.create == [
        Create(generation=1, size=UNIT, on="a"),
        Create(generation=2, size=3 * UNIT, on="a"),
    ]


def test_what_ray_has_moved_is_asked_for_where_the_replicas_are() -> None:
    """Without a raylet Ray places the group again. After the loss of its head Ray has no groups."""
    for groups in ([group(1, "b")], [group(1, None, 2)], []):
        result = plan([row(1, "a")], groups)
        assert result.create == [Create(generation=1, size=UNIT, on="a")]
        assert result.remove == [existing.id for existing in groups]
        assert result.place == {}


def test_a_lease_is_lost_where_ray_does_not_get_its_node_back() -> None:
    reconciler, rows, waiting = Reconciler(), [row(1, "a")], [group(1, None)]
    assert reconciler.plan(rows, waiting, [B], 0) == PlacementPlan()
    assert reconciler.plan(rows, waiting, [B], MISSING_S) == PlacementPlan()
    assert reconciler.plan(rows, waiting, [B], MISSING_S + 1).drop == [1]
    # The node was back in between.
    reconciler = Reconciler()
    reconciler.plan(rows, waiting, [B], 0)
    reconciler.plan(rows, [group(1, "a")], BOTH, MISSING_S / 2)
    assert reconciler.plan(rows, waiting, [B], MISSING_S + 1).drop == []


def test_room_is_made_by_who_was_called_longest_ago() -> None:
    rows = [
        row(1, "a", 2, idle_s=5.0),
        row(2, "a", 2, idle_s=9.0),
        row(3, "b", 2, idle_s=7.0),
        row(4, "b", 2, idle_s=3.0),
    ]
    groups = [group(lease_row.generation, lease_row.node_id, 2) for lease_row in rows]
    assert plan([*rows, row(5, units=2)], [*groups, group(5, None, 2)]).evict == [2]
    # Kept models are evicted last. Models in use are not evicted.
    kept_rows = [replace(lease_row, is_kept=lease_row.generation == 2) for lease_row in rows]
    assert plan([*kept_rows, row(5, units=2)], [*groups, group(5, None, 2)]).evict == [3]
    busy = [replace(lease_row, idle_s=None) for lease_row in rows]
    result = plan([*busy, row(5, units=2)], [*groups, group(5, None, 2)])
    assert result.evict == []
    assert "no node has more than 0 MiB free" in result.problems[5]


def test_as_few_go_as_can() -> None:
    rows = [row(number, "a", idle_s=100.0) for number in (1, 2, 3, 4)]
    large = row(5, "b", 4, idle_s=1.0)
    groups = [*(group(each.generation, "a") for each in rows), group(5, "b", 4)]
    assert plan([*rows, large, row(6, units=3)], [*groups, group(6, None, 3)]).evict == [5]


def test_two_who_wait_do_not_take_the_same_room() -> None:
    rows = [row(1, "a", 4, idle_s=9.0), row(2, "b", 4, idle_s=8.0)]
    groups = [group(1, "a", 4), group(2, "b", 4)]
    waiting = [row(3, units=4), row(4, units=4), row(5, units=4)]
    groups += [group(lease_row.generation, None, 4) for lease_row in waiting]
    result = plan([*rows, *waiting], groups)
    assert result.evict == [1, 2]
    assert [*result.problems] == [5]


def test_room_that_is_there_is_rays_to_find() -> None:
    result = plan([row(1, "a", idle_s=9.0), row(2, units=3)], [group(1, "a"), group(2, None, 3)])
    assert result == PlacementPlan()


def test_what_is_kept_loaded_while_there_is_room_lets_nobody_go() -> None:
    rows = [row(1, "a", 4, idle_s=9.0), row(2, "b", 4, idle_s=8.0)]
    groups = [group(1, "a", 4), group(2, "b", 4), group(3, None, 1)]
    result = plan([*rows, row(3, may_evict=False, is_kept=True)], groups)
    assert (result.evict, [*result.problems]) == ([], [3])


def test_why_it_waits_is_told_once() -> None:
    waiting = [row(1, units=9)]
    result = plan(waiting, [group(1, None, 9)])
    assert "needs about 144 MiB of memory, but the largest node has 64 MiB" in result.problems[1]
    reported = [replace(waiting[0], problem=result.problems[1])]
    assert plan(reported, [group(1, None, 9)]) == PlacementPlan()
    assert "Ray has no node" in plan(waiting, [group(1, None, 9)], []).problems[1]


def test_who_waits_for_too_long_is_given_up_unless_it_is_kept_loaded() -> None:
    old = row(1, units=9, age_s=WAITING_S + 1)
    assert plan([old], [group(1, None, 9)]).drop == [1]
    assert plan([replace(old, is_kept=True)], [group(1, None, 9)]).drop == []


class TestDevices:
    """Cases in which only `b` has a graphics device."""

    places = (A, replace(B, has_device=True))

    def test_it_is_asked_of_ray(self) -> None:
        device_row = row(1, needs_device=True)
        assert plan([device_row], [], [*self.places]).create == [
            Create(generation=1, size=UNIT, needs_device=True)
        ]
        # The device is requested again after a measurement changed the memory.
        grown = row(1, "b", 2, needs_device=True)
        result = plan([grown], [group(1, "b")], [*self.places])
        assert result.create == [Create(generation=1, size=2 * UNIT, needs_device=True, on="b")]

    def test_room_is_made_where_one_is(self) -> None:
        rows = [
            row(1, "a", 4, idle_s=9),
            row(2, "b", 4, idle_s=1),
            row(3, needs_device=True),
        ]
        groups = [group(1, "a", 4), group(2, "b", 4), group(3, None)]
        assert plan(rows, groups, [*self.places]).evict == [2]
        rows[2] = row(3)
        assert plan(rows, groups, [*self.places]).evict == [1]

    def test_there_is_none(self) -> None:
        rows = [row(1, "a", 4, idle_s=9), row(2, needs_device=True)]
        result = plan(rows, [group(1, "a", 4), group(2, None)], [A, B])
        assert result.evict == []
        assert result.problems == {
            2: "Ray has no node with a GPU that could run it. A new one was requested."
        }


def test_a_group_that_ray_does_not_place_although_there_is_room_is_created_again() -> None:
    reconciler = Reconciler()
    waiting, unplaced = [row(1, needs_device=True)], [group(1, None)]
    with_device = replace(B, has_device=True)
    # Without a device, the group waits for a node.
    for now in (0, 5 * OVERDUE_S):
        assert reconciler.plan(waiting, unplaced, BOTH, now).remove == []
    joined = 5 * OVERDUE_S + 1
    for now in (joined, joined + OVERDUE_S):
        assert not reconciler.plan(waiting, unplaced, [A, with_device], now).has_changes
    overdue = reconciler.plan(waiting, unplaced, [A, with_device], joined + OVERDUE_S + 1)
    assert overdue.remove == ["group1"]
    again = reconciler.plan(waiting, [], [A, with_device], joined + OVERDUE_S + 2)
    assert again.create == [Create(generation=1, size=UNIT, needs_device=True)]
    # The new group has the same time.
    new_group = [group(1, None, name="new")]
    for now in (joined + 2 * OVERDUE_S, joined + 3 * OVERDUE_S):
        assert not reconciler.plan(waiting, new_group, [A, with_device], now).has_changes


def test_the_time_of_a_group_begins_again_after_its_room_was_taken() -> None:
    reconciler = Reconciler()
    waiting, unplaced = [row(1, units=4)], [group(1, None, units=4)]
    taken = [row(2, "a", units=4)]
    assert not reconciler.plan(waiting, unplaced, [A], 0).has_changes
    reconciler.plan([*waiting, *taken], [*unplaced, group(2, "a", units=4)], [A], OVERDUE_S)
    assert not reconciler.plan(waiting, unplaced, [A], OVERDUE_S + 1).has_changes
    assert not reconciler.plan(waiting, unplaced, [A], 2 * OVERDUE_S).has_changes
