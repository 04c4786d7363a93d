"""Claims of GPU memory against the driver's numbers, on a simulated card."""

import asyncio
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.base.config import MIB
from stoker.base.errors import CapacityError
from stoker.models.llm.engines.memory import claimed_cache_bytes
from stoker.models.llm.engines.paged import sizes, varlen
from stoker.models.llm.engines.paged.attention import AttentionLayer
from stoker.models.llm.engines.paged.memory import block_bytes
from stoker.runtime.interface import LoadError
from stoker.runtime.local.memory import device_watch
from stoker.runtime.local.memory.device_sizing import CONTEXT_BYTES, HEADROOM
from stoker.runtime.local.memory.device_watch import DriverReading
from stoker.runtime.local.memory.devices import Device
from stoker.runtime.local.memory.replica_table import Resident
from stoker.runtime.observed import Reason, Status
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.protocol import Loaded
from tests.runtime.local.test_device_sizing import GIB, MODEL, World
from tests.runtime.pool.world import settle

CARD = "GPU-00000001"
CONTEXT = 716 * MIB
"""Real memory of CUDA's context and libraries on the simulated card."""
DRIVER_BYTES = 4 * MIB
"""Memory that the driver itself uses on an idle card."""


class Card:
    """A world whose larger card holds what the simulated replicas really use."""

    def __init__(
        self, folder: Path, *, lists_processes: bool = True, gpu_memory_share: float = 0.9
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.world = World(folder, gpu_memory_share=gpu_memory_share)
        self.lists_processes = lists_processes
        self.other_bytes = 0
        self.reserved: dict[str, int] = {}
        host: Any = self.world.runtime._host
        host.pid = self.pid
        self.world.runtime._device_watch._pid = self.pid
        self.world.runtime._device_watch._before[CARD] = DRIVER_BYTES
        self.read()

    def pid(self, replica_id: str) -> int:
        return 1000 + list(self.reserved).index(replica_id) if replica_id in self.reserved else 0

    async def launch(self, spec: DeploymentSpec, reserved: int) -> Resident:
        resident = await self.world.launch(spec)
        self.reserved[resident.replica.id] = reserved
        self.world.measure(resident, reserved)
        return resident

    def end(self, resident: Resident) -> None:
        self.reserved.pop(resident.replica.id)
        self.world.runtime._processes._clean_up(resident)

    @property
    def used(self) -> int:
        """Bytes in use, as nvidia-smi reports them."""
        return DRIVER_BYTES + self.other_bytes + self.ours

    @property
    def ours(self) -> int:
        return sum(reserved + CONTEXT for reserved in self.reserved.values())

    def read(self) -> None:
        """Reads the driver twice, and has each replica report in between."""
        for _ in range(2):
            small, large = self.world.table.there
            self.world.table.there = [
                replace(small, used_bytes=DRIVER_BYTES),
                replace(large, used_bytes=self.used),
            ]
            self.world.table.holding = (
                {
                    self.pid(replica_id): {CARD: reserved + CONTEXT}
                    for replica_id, reserved in self.reserved.items()
                }
                if self.lists_processes
                else {}
            )
            self.world.look()
            for replica_id, reserved in self.reserved.items():
                self.world.measure(self.world.runtime._residents[replica_id], reserved)

    @property
    def claimed(self) -> int:
        return self.world.held[1]


@pytest.fixture(params=[True, False], ids=["listed", "hidden"])
def card(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Card]:
    """Yields a card whose driver lists the processes, or hides them as in a container."""
    card = Card(tmp_path, lists_processes=request.param)
    yield card
    card.world.close()


def spec(number: int) -> DeploymentSpec:
    return replace(MODEL, id=f"dep_{number}", source=f"upl_{number}", device="cuda:1")


def write_weights(folder: Path, dtype: str, numbers: int) -> None:
    width = {"F32": 4, "BF16": 2}[dtype]
    header = json.dumps(
        {"w": {"dtype": dtype, "shape": [numbers], "data_offsets": [0, numbers * width]}}
    ).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        # Sparse, so that it takes no room on the disk.
        file.truncate(8 + len(header) + numbers * width)


@pytest.mark.parametrize("count", [1, 30])
async def test_claims_are_within_ten_percent_of_the_driver(card: Card, count: int) -> None:
    for number in range(count):
        await card.launch(spec(number), (22 + 13 * (number % 7)) * MIB)
    card.read()
    assert card.claimed == pytest.approx(card.used, rel=0.1)
    assert card.claimed >= card.used - 2 * DRIVER_BYTES


async def test_a_large_model_is_within_ten_percent(card: Card) -> None:
    await card.launch(spec(0), 2100 * MIB)
    card.read()
    assert card.claimed == pytest.approx(card.used, rel=0.1)


async def test_the_context_is_measured_once_and_kept(card: Card, tmp_path: Path) -> None:
    sizing = card.world.runtime._device_sizing
    assert sizing.context_bytes() == CONTEXT_BYTES
    await card.launch(spec(0), 500 * MIB)
    card.read()
    assert sizing.context_bytes() == CONTEXT
    again = World(tmp_path)
    assert again.runtime._device_sizing.context_bytes() == CONTEXT, "after a restart, too"
    again.close()


async def test_other_processes_take_from_the_budget(card: Card) -> None:
    await card.launch(spec(0), 500 * MIB)
    card.other_bytes = 30 * GIB
    card.read()
    _, large = card.world.runtime.machine().devices
    assert large.used_bytes == card.used
    assert large.other_bytes == pytest.approx(30 * GIB, abs=16 * MIB)
    assert large.budget_bytes == pytest.approx(9 * GIB, abs=16 * MIB)
    with pytest.raises(CapacityError, match=r"Other processes hold 30\.0 GiB in addition"):
        await card.world.launch(replace(spec(1), memory_bytes=20 * GIB))
    card.other_bytes = 0
    card.read()
    assert card.world.runtime.machine().devices[1].budget_bytes == 36 * GIB


async def test_two_servers_on_one_card(tmp_path: Path) -> None:
    first, second = Card(tmp_path / "first"), Card(tmp_path / "second")
    for card, other in ((first, second), (second, first)):
        for number in range(4):
            await card.launch(spec(number), 2 * GIB)
        other.other_bytes = card.ours
    for card in (first, second):
        card.read()
        (_, large) = card.world.runtime.machine().devices
        assert large.budget_bytes + large.other_bytes <= 40 * GIB
        assert large.held_bytes + large.other_bytes == pytest.approx(card.used, rel=0.1)
        card.world.close()


async def test_two_servers_have_a_share_each(tmp_path: Path) -> None:
    """One that fills its share leaves the other one's share as it is, and evicts nothing there."""
    first, second = (Card(tmp_path / name, gpu_memory_share=0.5) for name in ("first", "second"))
    for number in range(6):
        await first.launch(spec(number), 2 * GIB)
    for number in range(5):
        await second.launch(spec(number), 2 * GIB)
    for card, other in ((first, second), (second, first)):
        card.other_bytes = other.ours
        card.read()
        (_, large) = card.world.runtime.machine().devices
        assert large.budget_bytes == 20 * GIB
        assert large.other_bytes == pytest.approx(other.ours, abs=16 * MIB)
        assert card.world.runtime._memory.devices[1].excess < 0
        card.world.close()


class TestReading:
    """A reading of the driver while replicas end and grow."""

    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_watch, "CONFIRMED_S", 0.0)

    async def test_a_replica_that_ends_during_it_is_not_another_process(self, card: Card) -> None:
        ending, _ = [await card.launch(spec(number), 4 * GIB) for number in range(2)]
        card.read()
        loop, table = asyncio.get_running_loop(), card.world.table.table
        used = card.used

        def read() -> Any:
            devices = table()
            loop.call_soon_threadsafe(card.end, ending)
            return [devices[0], replace(devices[1], used_bytes=used)]

        card.world.table.table = read  # type: ignore[method-assign]
        reading = await card.world.runtime._device_watch._read()
        assert ending.replica.id not in card.reserved
        card.world.runtime._device_watch.apply(reading)
        (_, large) = card.world.runtime.machine().devices
        assert (large.other_bytes, large.budget_bytes) == (0, 36 * GIB)

    async def test_a_replica_that_grows_is_not_another_process(self, card: Card) -> None:
        growing = await card.launch(spec(0), 4 * GIB)
        card.read()
        used, reports = card.used, 0

        def read() -> Any:
            nonlocal reports
            reports += 1
            if reports == 2:
                # Its report of the next second.
                growing.replica.vitals.device_bytes = 10 * GIB
            small, large = card.world.table.there
            return [small, replace(large, used_bytes=used + 6 * GIB)]

        card.world.table.table = read  # type: ignore[method-assign]
        card.world.table.holding = {}
        await card.world.runtime._device_watch.look()
        (_, large) = card.world.runtime.machine().devices
        assert (reports, large.other_bytes, large.budget_bytes) == (2, 0, 36 * GIB)

    async def test_another_process_is_seen(self, card: Card) -> None:
        await card.launch(spec(0), 4 * GIB)
        card.read()
        small, large = card.world.table.there
        card.world.table.there = [small, replace(large, used_bytes=card.used + 6 * GIB)]
        await card.world.runtime._device_watch.look()
        assert card.world.runtime.machine().devices[1].other_bytes == pytest.approx(
            6 * GIB, abs=16 * MIB
        )

    async def test_a_device_that_is_missing_once_stays(self, card: Card) -> None:
        both, answers = card.world.table.there, iter([1, 2])

        def read() -> Any:
            return both[: next(answers)]

        card.world.table.table = read  # type: ignore[method-assign]
        assert not await card.world.runtime._device_watch.look()
        assert card.world.runtime.machine().devices[1].budget_bytes == 36 * GIB

    async def test_a_load_without_memory_that_others_took(self, card: Card) -> None:
        before = card.world.size(spec(0))
        resident = await card.launch(spec(0), GIB)
        card.read()
        measured = card.world.size(spec(0))
        small, large = card.world.table.there
        card.world.table.there = [small, replace(large, used_bytes=card.used + 30 * GIB)]
        resident.replica._callbacks.on_load_failed(LoadError("too little", out_of_memory=True))
        assert card.world.size(spec(0)) == 2 * measured
        async with asyncio.timeout(10):
            while card.world.size(spec(0)) != measured:
                await asyncio.sleep(0.01)
        assert measured != before


async def test_forty_deployments_on_a_card_for_thirty(card: Card) -> None:
    size = int(36 * GIB / 30.5 / HEADROOM) - CONTEXT
    served: list[int] = []
    residents: list[Resident] = []
    for turn in range(80):
        number = turn % 40
        room = card.world.runtime._memory.devices[1]
        need = card.world.runtime._device_sizing.wanted(spec(number))
        assert need
        while residents and room.held + need.size > room.total:
            card.end(residents.pop(0))
        resident = await card.launch(spec(number), size)
        residents.append(resident)
        served.append(number)
        card.read()
        assert card.used <= 40 * GIB, "no overrun"
        assert card.claimed <= 36 * GIB
    assert sorted(served) == sorted([*range(40)] * 2), "each was served in time"
    assert len(residents) >= 30


class TestFirstClaim:
    async def test_is_the_weights_in_their_type(self, card: Card) -> None:
        write_weights(card.world.model, "BF16", 1_000_000_000)
        model = replace(spec(0), memory_bytes=5 * GIB)
        await card.world.launch(model)
        weights = 2_000_000_000
        assert card.claimed == pytest.approx(weights * 1.05 + CONTEXT_BYTES + 128 * MIB, abs=MIB)

    async def test_a_model_larger_than_the_card_says_what_fits(self, card: Card) -> None:
        # Single precision takes 40 GiB of weights, and half of it in half precision.
        write_weights(card.world.model, "F32", 10 * GIB)
        model = spec(0)
        card.world.runtime.apply(model, running=False)
        await card.world.runtime._weigh(model, card.world.model)
        with pytest.raises(CapacityError) as caught:
            await card.world.launch(model)
        assert "needs about 42.8 GiB of the memory of GPU 1 and cannot fit" in caught.value.message
        assert "In half precision it needs about 21.8 GiB and fits" in caught.value.message
        assert "set 'dtype' to 'bfloat16'" in caught.value.message
        with pytest.raises(CapacityError, match="Models with weights of up to"):
            await card.world.launch(replace(model, source="other", memory_bytes=50 * GIB))
        with pytest.raises(CapacityError, match="Or set 'device' to 'cpu', where it has room"):
            await card.world.launch(replace(model, source="other", memory_bytes=50 * GIB))

    async def test_a_model_larger_than_the_card_is_reported_at_once(self, card: Card) -> None:
        write_weights(card.world.model, "F32", 10 * GIB)
        model, runtime = spec(0), card.world.runtime
        runtime.apply(model, running=True)
        await runtime._weigh(model, card.world.model)
        stats = runtime.stats(model.id)
        assert stats and stats.status is Status.FAILED
        assert stats.reason is Reason.INSUFFICIENT_MEMORY
        assert "cannot fit" in stats.message and "set 'dtype' to 'bfloat16'" in stats.message
        # Another deployment of the model that fits.
        runtime.apply(replace(model, id="dep_2", dtype="bfloat16"), running=True)
        fitting = runtime.stats("dep_2")
        assert fitting and fitting.status is Status.IDLE

    async def test_a_language_model_larger_than_the_card(self, card: Card) -> None:
        write_weights(card.world.model, "BF16", 40 * 10**9)
        model = replace(spec(0), pipeline="text-generation", engine="vllm", device="cuda")
        card.world.runtime.apply(model, running=False)
        await card.world.runtime._weigh(model, card.world.model)
        with pytest.raises(CapacityError) as caught:
            await card.world.launch(model)
        message = caught.value.message
        assert "weights take 74.5 GiB, and its engine may use 36.0 GiB of the memory of GPU 1" in (
            message
        )
        assert "With weights of 4 bits (AWQ or GPTQ, on vLLM) it needs about" in message
        assert "GPUs it fits" not in message and "'cpu'" not in message

    async def test_auto_runs_it_on_the_cpu_and_says_why(self, card: Card) -> None:
        model = replace(spec(0), device="auto", memory_bytes=50 * GIB)
        resident = await card.world.launch(model)
        assert card.world.told[-1].device == "cpu"
        wire: Any = resident.replica.channel
        wire.receive(Loaded(1.0, convertible=False, device="cpu"))
        await settle()
        assert "cannot fit" in resident.replica.device_problem


async def test_caches_stay_within_their_claims(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas start at the same time, so each sees the whole card as free."""
    write_weights(card.world.model, "BF16", 500_000_000)
    weights = 1_000_000_000
    layers = [AttentionLayer(32, 8, 128, 128, None, torch.bfloat16)] * 32
    monkeypatch.setattr(varlen, "supported", lambda *_: False)
    monkeypatch.setattr(sizes, "free_bytes", lambda _: 40 * GIB - DRIVER_BYTES)
    for number in range(2):
        language = replace(spec(number), pipeline="text-generation", engine="torch")
        await card.world.launch(replace(language, memory_bytes=2 * GIB))
        replica = card.world.told[-1]
        ((_, claim),) = card.world.runtime._memory.devices_of(replica.id)
        assert replica.device_bytes == claim - CONTEXT_BYTES
        most_bytes = claimed_cache_bytes(weights, replica.device_bytes)
        # A sequence of maximum length would need 16 GiB.
        plan = sizes.planned(layers, 1 << 17, 20 * GIB, torch.device("cuda"), most_bytes)
        cache = plan.blocks * block_bytes(layers, plan.block_tokens)
        assert 1.9 * GIB < cache <= claim - weights - CONTEXT_BYTES
        assert plan.max_length == plan.blocks * plan.block_tokens


async def test_a_replica_on_the_cpu_releases_its_claim(card: Card) -> None:
    resident = await card.world.launch(spec(0))
    assert card.claimed
    wire: Any = resident.replica.channel
    wire.receive(Loaded(1.0, convertible=False, device="cpu", device_problem="no driver."))
    card.world.measure(resident, 0)
    assert card.claimed == 0
    assert card.world.size(spec(0)) == MODEL.memory_bytes + CONTEXT_BYTES, "the next one claims"


async def test_a_reading_without_devices_says_nothing(card: Card) -> None:
    await card.launch(spec(0), GIB)
    card.read()
    before = card.world.runtime.machine().devices
    table: list[Device] = []
    assert not card.world.runtime._device_watch.apply(DriverReading(table))
    assert card.world.runtime.machine().devices == before
