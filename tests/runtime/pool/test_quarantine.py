"""A conversion is not used again if a replica dies or hangs because of it."""

from dataclasses import replace
from typing import Any

import pytest

from stoker.base.errors import CapacityError, ModelLoadingError
from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.conversion_state import PROVED_ANSWERS, PROVED_S
from stoker.runtime.pool.deployment_pool import EARLY_END_S
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.wire.protocol import Adopted, LoadFailed
from tests.runtime.pool.world import EXECUTION, LIMITS, World, answer_unknown, settle


class TestConverted:
    async def ended(
        self, world: World, status: int, *, answers: int = 0, kill_reason: Reason | None = None
    ) -> ReplicaHandle:
        """Returns a replica that started to use a conversion and ended."""
        call = world.call()
        replica = await world.loaded()
        world.answer(replica)
        await call
        replica.conversion.begin_with(EXECUTION)
        answer_unknown(replica, answers)
        if kill_reason:
            replica.record_kill(kill_reason)
        world.pool.exited(replica, status)
        await settle()
        return replica

    async def test_is_set_aside_by_a_crash(self, world: World) -> None:
        await self.ended(world, -8)
        ((execution, reason),) = world.launcher.quarantined
        assert execution is EXECUTION
        assert reason == "A replica ended by signal 8 (SIGFPE) soon after it began to use OpenVINO."
        assert Reason.ENGINE_SET_ASIDE in [reason for _, reason in world.recorder.changes]
        # The next replica starts at once.
        call = world.call()
        world.answer(await world.loaded())
        assert await call == b"[]"

    async def test_is_set_aside_by_a_hang(self, world: World) -> None:
        await self.ended(world, -9, kill_reason=Reason.STALLED)
        ((_, reason),) = world.launcher.quarantined
        assert reason.startswith("A replica hung and was ended soon after")

    async def test_is_not_to_blame_for_what_others_end(self, world: World) -> None:
        await self.ended(world, -9)
        assert not world.launcher.quarantined

    async def test_is_not_to_blame_once_it_has_served(self, world: World) -> None:
        await self.ended(world, -11, answers=PROVED_ANSWERS)
        assert not world.launcher.quarantined

    async def adopting(self, world: World) -> tuple[ReplicaHandle, Any]:
        """Returns a working replica with an offered conversion, and its connection."""
        call = world.call()
        replica = await world.loaded()
        world.answer(replica)
        await call
        replica.adopt(EXECUTION)
        # Its answers meanwhile came from torch.
        answer_unknown(replica, PROVED_ANSWERS)
        world.clock.now += 2 * PROVED_S
        return replica, replica.channel

    async def test_is_set_aside_by_a_crash_while_it_is_made_ready(self, world: World) -> None:
        replica, _ = await self.adopting(world)
        world.pool.exited(replica, -8)
        assert len(world.launcher.quarantined) == 1

    async def test_is_set_aside_by_a_crash_once_it_was_taken(self, world: World) -> None:
        replica, wire = await self.adopting(world)
        wire.receive(Adopted(is_taken=True))
        world.pool.exited(replica, -8)
        assert len(world.launcher.quarantined) == 1

    async def test_is_not_to_blame_once_it_was_taken_and_has_served(self, world: World) -> None:
        replica, wire = await self.adopting(world)
        wire.receive(Adopted(is_taken=True))
        answer_unknown(replica, PROVED_ANSWERS)
        world.pool.exited(replica, -8)
        assert not world.launcher.quarantined

    async def test_is_not_to_blame_where_it_was_not_taken(self, world: World) -> None:
        replica, wire = await self.adopting(world)
        wire.receive(Adopted(is_taken=False))
        world.pool.exited(replica, -8)
        assert not world.launcher.quarantined

    async def test_is_not_to_blame_for_an_input_that_is_decoded(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        replica.conversion.begin_with(EXECUTION)
        replica.flight.preparing.update(replica.pending)
        world.clock.now += EARLY_END_S
        world.pool.exited(replica, -11)
        assert not world.launcher.quarantined
        with pytest.raises(CapacityError):
            await call

    async def test_that_dies_while_it_is_loaded_costs_no_pause(self, world: World) -> None:
        call = world.call()
        await settle()
        (first,) = world.launcher.launched
        first.conversion.begin_with(EXECUTION)
        world.pool.exited(first, -8)
        await settle()
        assert len(world.launcher.quarantined) == 1
        world.answer(await world.loaded())
        assert await call == b"[]"
        assert Status.FAILED not in [status for status, _ in world.recorder.changes]

    async def test_that_cannot_be_loaded_any_more(self, world: World) -> None:
        """A conversion that can no longer be loaded is set aside, for example with a broken
        cache.
        """
        call = world.call()
        await settle()
        (first,) = world.launcher.launched
        first.conversion.begin_with(EXECUTION)
        wire: Any = first.channel
        wire.receive(LoadFailed("RuntimeError: no such file."))
        await settle()
        ((_, reason),) = world.launcher.quarantined
        assert reason == "It could not be loaded: RuntimeError: no such file."
        world.pool.exited(first, 0)
        world.answer(await world.loaded())
        assert await call == b"[]"

    async def test_that_hangs_while_it_is_loaded(self) -> None:
        world = World()
        world.pool._starts._limits = replace(LIMITS, load_timeout_s=0.01)
        call = world.call()
        await settle()
        (first,) = world.launcher.launched
        first.conversion.begin_with(EXECUTION)
        with pytest.raises(ModelLoadingError, match="not loaded in"):
            await call
        assert world.launcher.killed == [first.id]
        world.pool.exited(first, -9)
        assert len(world.launcher.quarantined) == 1

    async def test_no_other_engine_may_take_its_place(self, world: World) -> None:
        call = world.call()
        replica = await world.loaded()
        world.pool.fail_engine("OpenVINO cannot run it. Set 'engine' to 'auto'.")
        assert (Status.FAILED, Reason.ENGINE_FAILED) in world.recorder.changes
        with pytest.raises(ModelLoadingError, match="Set 'engine' to 'auto'"):
            await world.call()
        world.answer(replica)
        assert await call == b"[]", "what was begun is finished"
        changes = list(world.recorder.changes)
        world.pool.exited(replica, 0)
        stats = world.pool.stats()
        assert (stats.status, stats.reason) == (Status.FAILED, Reason.ENGINE_FAILED)
        assert stats.message == "OpenVINO cannot run it. Set 'engine' to 'auto'.", "it stays said"
        assert world.recorder.changes == changes
