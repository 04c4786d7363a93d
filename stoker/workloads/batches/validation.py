"""Validates an input file as a whole, before any line is answered."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stoker.base.errors import (
    EndpointNotSupportedError,
    InvalidAPIKeyError,
    InvalidRequestError,
    ModelNotFoundError,
)
from stoker.inference.operation import Operation
from stoker.models.tasks.registry import endpoints
from stoker.platform.web.principal import Principal, Scope
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.store.tables.batches import Batch
from stoker.store.tables.files import File
from stoker.workloads.batches.context import BatchContext
from stoker.workloads.batches.lines import HEAD, LINE, PARSE_ERRORS, InputLine, read_lines

MOST_ERRORS = 100
MOST_ID_CHARS = 512
_MIB = 1 << 20

_UNUSABLE = (
    EndpointNotSupportedError,
    InvalidAPIKeyError,
    InvalidRequestError,
    ModelNotFoundError,
)

Fault = dict[str, Any]


class _TooManyFaultsError(Exception):
    """Raised if no more faults are listed."""


@dataclass
class Faults:
    """Errors of a batch, in OpenAI's form."""

    items: list[Fault] = field(default_factory=list[Fault])

    def add(
        self, code: str, message: str, line: int | None = None, param: str | None = None
    ) -> None:
        self.items.append({"code": code, "message": message, "line": line, "param": param})
        if len(self.items) >= MOST_ERRORS:
            raise _TooManyFaultsError


@dataclass(frozen=True)
class ValidInput:
    total: int
    entry: DirectoryEntry


class _Checker:
    def __init__(self, endpoint: str, most_lines: int, most_mib: int, faults: Faults) -> None:
        self._endpoint = endpoint
        self._most_lines = most_lines
        self._most_mib = most_mib
        self._faults = faults
        self._ids: dict[str, int] = {}
        self.total = 0
        self.models: dict[str | None, int] = {}
        """Maps the named models to the first line of each. At most two are recorded."""

    def check(self, lines: Sequence[InputLine]) -> None:
        """Checks lines (sync, for threads). Raises `_TooManyFaultsError`."""
        for line in lines:
            if line.number > self._most_lines:
                self._faults.add(
                    "too_many_lines",
                    f"The file has more than {self._most_lines} lines, the limit of this server. "
                    "Split it into several batches.",
                    line.number,
                )
                raise _TooManyFaultsError
            self.total += 1
            self._check(line)

    def _check(self, line: InputLine) -> None:
        add, number = self._faults.add, line.number
        if line.content is None:
            add("line_too_large", f"The line is larger than {self._most_mib} MiB.", number)
            return
        try:
            parsed = LINE.decode(line.content)
        except msgspec.ValidationError as error:
            add("invalid_line", f"The line is not a request: {error}.", number)
            return
        except PARSE_ERRORS as error:
            add("invalid_json_line", f"The line is not valid JSON: {error}.", number)
            return
        self._check_id(parsed.custom_id, number)
        if parsed.method != "POST":
            add("invalid_method", "'method' must be \"POST\".", number, "method")
        if parsed.url != self._endpoint:
            message = f"'url' must be the batch's endpoint, '{self._endpoint}'."
            add("mismatched_url", message, number, "url")
        try:
            head = HEAD.decode(parsed.body)
        except PARSE_ERRORS as error:
            add("invalid_body", f"'body' is not a request: {error}.", number, "body")
            return
        if head.stream:
            message = "Answers of a batch are not streamed: leave 'stream' out."
            add("stream_not_supported", message, number, "body.stream")
        self._check_model(head.model, number)

    def _check_id(self, custom_id: str, number: int) -> None:
        if not 0 < len(custom_id) <= MOST_ID_CHARS:
            message = f"'custom_id' must have 1 to {MOST_ID_CHARS} characters."
            self._faults.add("invalid_custom_id", message, number, "custom_id")
        elif (first := self._ids.setdefault(custom_id, number)) != number:
            message = f"Line {first} has the same 'custom_id'. Each must be unique."
            self._faults.add("duplicate_custom_id", message, number, "custom_id")

    def _check_model(self, model: str | None, number: int) -> None:
        if model in self.models:
            return
        if not self.models:
            self.models[model] = number
            return
        first = next(iter(self.models))
        self._faults.add(
            "mismatched_model",
            "All lines must name the same model. "
            + (f"The first names '{first[:128]}'." if first else "The first names none."),
            number,
            "body.model",
        )


async def validate(
    context: BatchContext, row: Batch, file: File, operation: Operation[Any]
) -> ValidInput | list[Fault]:
    """Returns the number of lines and their deployment, or the errors.

    Raises the errors of `read_lines`.
    """
    settings, faults = context.settings, Faults()
    if file.size > settings.batch_mib * _MIB:
        message = f"The file is larger than {settings.batch_mib} MiB, the limit of a batch."
        faults.add("file_too_large", message)
        return faults.items
    checker = _Checker(row.endpoint, settings.batch_lines, settings.batch_line_mib, faults)
    entry = None
    try:
        async with aclosing(read_lines(context, file, settings.batch_line_mib * _MIB)) as blocks:
            async for lines in blocks:
                await asyncio.to_thread(checker.check, lines)
        if not checker.total:
            faults.add("empty_file", "The file has no request.")
        for model, number in checker.models.items():
            try:
                entry = await _resolved(context, row, model, operation)
            except _UNUSABLE as error:
                code = error.code
                if isinstance(error, InvalidAPIKeyError):
                    code = ModelNotFoundError.code
                faults.add(code, error.message, number, "body.model")
    except _TooManyFaultsError:
        return faults.items
    return faults.items if faults.items or entry is None else ValidInput(checker.total, entry)


async def _resolved(
    context: BatchContext, row: Batch, model: str | None, operation: Operation[Any]
) -> DirectoryEntry:
    """Returns the deployment that the lines name. Raises the errors of `_UNUSABLE`."""
    entry = await context.calls.directory.resolve(creator(row), model)
    if entry.pipeline not in operation.pipelines:
        paths = ", ".join(endpoints(entry.pipeline)) or "no endpoint of this server"
        raise EndpointNotSupportedError(
            f"'{entry.model}' is deployed for {entry.pipeline}, served by {paths}."
        )
    return entry


def creator(row: Batch) -> Principal:
    """Returns the caller that created a batch."""
    scope = Scope.ACCOUNT if row.deployment_ids is None else Scope.DEPLOYMENT
    covered = frozenset(row.deployment_ids or ())
    return Principal(row.key_id, row.key, scope, row.account_id, covered)
