"""Operations of the tasks: one function answers all of them."""

from collections.abc import Awaitable, Callable
from typing import Any

from stoker.base.config import Settings
from stoker.base.errors import InvalidRequestError
from stoker.inference.operation import Operation, WholeAnswer
from stoker.inference.session import CallSession
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.registry import TASKS
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.interface import Call

Answering = Callable[[CallSession, DirectoryEntry, TaskRequest], Awaitable[WholeAnswer]]


def answering(task: Task) -> Answering:
    """Returns the function that answers requests for a task."""

    async def answer(session: CallSession, entry: DirectoryEntry, body: TaskRequest) -> WholeAnswer:
        items, single = body.items()
        check_inputs(session.settings, body, items)
        call = Call(
            task=task.name,
            items=items,
            parameters=body.parameters(),
            single=single,
            finishing=body.finishing() | {"model": entry.model},
        )
        await session.collect(body)
        return WholeAnswer(await session.run(entry, call))

    return answer


def _operation(task: Task) -> Operation[TaskRequest]:
    return Operation(
        path=task.path,
        aliases=task.aliases,
        summary=task.summary,
        name=task.name,
        tag="Tasks",
        request=task.request,
        example=task.example,
        media=task.media,
        bare=task.bare,
        pipelines=task.pipelines,
        answer=answering(task),
    )


def check_inputs(settings: Settings, body: TaskRequest, items: list[Any]) -> None:
    """Raises `InvalidRequestError` for more or longer inputs than the server's settings allow."""
    limit = body.max_items or settings.list_limit
    if len(items) > limit:
        field = body.input_fields[0]
        raise InvalidRequestError(
            f"'{field}' has {len(items)} items; the limit is {limit}.",
            param=field,
        )
    for path, text in body.texts():
        if len(text) > settings.text_limit_chars:
            raise InvalidRequestError(
                f"'{path}' has {len(text)} characters; the limit is {settings.text_limit_chars}.",
                param=path,
            )


OPERATIONS = tuple(_operation(task) for task in TASKS.values())
