"""Task endpoints: one handler, and one route per task."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Response

from stoker.base.config import Settings
from stoker.base.errors import CALLING, InvalidRequestError, UnsupportedMediaTypeError, responses
from stoker.inference import bodies
from stoker.inference.call import CallingDep, CallRoute
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.registry import TASKS
from stoker.runtime.interface import Call

router = APIRouter(tags=["Tasks"], route_class=CallRoute)


def _handler(task: Task) -> Callable[..., Awaitable[Response]]:
    async def handle(calling: CallingDep) -> Response:
        settings = calling.settings
        body = await bodies.read(calling.request, task, max_files=settings.list_limit)
        entry = await calling.target(body, task.pipelines)
        items, single = body.items()
        _check_inputs(settings, body, items)
        call = Call(
            task=task.name,
            items=items,
            parameters=body.parameters(),
            single=single,
            finishing=body.finishing() | {"model": entry.model},
        )
        content = await calling.answer(entry, call, body)
        return Response(content, media_type="application/json")

    return handle


def _check_inputs(settings: Settings, body: TaskRequest, items: list[Any]) -> None:
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


def _operation(task: Task, path: str) -> str:
    """Returns the operation id for the OpenAPI document. Each path has a separate one."""
    name = task.name if path == task.path else f"{task.name}_at{path}"
    return name.replace("-", "_").replace("/", "_")


for _task, _path in [(task, path) for task in TASKS.values() for path in task.paths]:
    router.add_api_route(
        _path,
        _handler(_task),
        methods=["POST"],
        summary=_task.summary,
        name=_task.name,
        operation_id=_operation(_task, _path),
        description=f"For deployments of the pipeline `{'` or `'.join(_task.pipelines)}`.",
        response_model=None,
        responses=responses(*CALLING, UnsupportedMediaTypeError),
    )
