"""`stoker cluster up`: a fleet that runs as long as the command does."""

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from stoker import sandbox
from stoker.client.errors import StokerError
from stoker.cluster.fleet import LocalFleet, Teller
from stoker.cluster.plan import FleetPlan
from stoker.demo.setup import Demo, set_up
from stoker.server.bootstrap import FILE as OPERATOR_KEY

T = TypeVar("T")


class Screen(Teller, Protocol):
    def ready(self, state: dict[str, Any], demo: Demo | None) -> None:
        """Shows that the fleet is ready: the content of DATA_DIR/cluster.json, and the demo if
        requested.
        """
        ...


def run(plan: FleetPlan, screen: Screen) -> None:
    """Starts a fleet and ends it at SIGTERM or SIGINT. Raises `StokerError`."""
    fleet = LocalFleet(plan, screen)
    # This process has the database's password.
    sandbox.keep_to_itself()
    asyncio.run(_run(fleet, plan, screen))


async def _run(fleet: LocalFleet, plan: FleetPlan, screen: Screen) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    serving = asyncio.create_task(_serve(fleet, plan, screen))
    ending = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await serving
    finally:
        for task in (serving, ending):
            task.cancel()
        await asyncio.gather(serving, ending, return_exceptions=True)
        await fleet.stop()


async def _serve(fleet: LocalFleet, plan: FleetPlan, screen: Screen) -> None:
    await fleet.start()
    await fleet.while_database(asyncio.create_task(_show(fleet, plan, screen)))


async def _show(fleet: LocalFleet, plan: FleetPlan, screen: Screen) -> None:
    demo = await _demo(fleet, plan, screen) if plan.has_demo else None
    # The file is written last, so that everything else exists for programs that wait for it.
    screen.ready(fleet.write(), demo)
    await asyncio.Event().wait()


async def _demo(fleet: LocalFleet, plan: FleetPlan, screen: Screen) -> Demo:
    if not (plan.folder / OPERATOR_KEY).exists():
        raise StokerError(
            "The demo needs an operator's key, but the servers of this database have none.",
            hint=f"Write one to {plan.folder / OPERATOR_KEY}.",
        )

    def deploying(number: int, total: int) -> None:
        screen.progress(f"Deploying the demo's models: {number} of {total} …")

    return await _in_thread(lambda: set_up(fleet.base_urls[0], plan.folder, deploying))


async def _in_thread(work: Callable[[], T]) -> T:
    """Runs `work` like `asyncio.to_thread`. However, shutdown does not wait for the thread after a
    cancellation: its servers are then stopped.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def told(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = work(), None
        except Exception as error:
            outcome = None, error
        if not loop.is_closed():
            loop.call_soon_threadsafe(told, *outcome)

    threading.Thread(target=run, name="demo", daemon=True).start()
    return await result
