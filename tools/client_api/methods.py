"""Writes the classes whose methods call the operations."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from tools.client_api.annotations import Annotations, TypeUse
from tools.client_api.classes import (
    WIDTH,
    ClassModules,
    class_name,
    parameters_name,
    title,
    typing_imports,
)
from tools.client_api.document import Document, Operation, Schema, reference
from tools.client_api.table import RESOURCES, ClientResource

HIDDEN_QUERY = {"after", "format"}
"""Parameters that the client sets itself."""


@dataclass(frozen=True)
class TaskInput:
    """The field of a task that takes one input or a list, and the result of each."""

    name: str
    single: Schema
    many: Schema
    result: Schema


class MethodWriter:
    """Writes one module of methods per group of resources."""

    def __init__(
        self,
        document: Document,
        models: ClassModules,
        results: Annotations,
        media: Mapping[str, str],
        inputs: Mapping[str, TaskInput],
    ) -> None:
        """Args:
        media: path of an operation -> field of its body that takes files.
        inputs: path of a task -> its input.
        """
        self._document = document
        self._models = models
        self._results = results
        self._media = media
        self._inputs = inputs
        self._parameters = Annotations(TypeUse.PARAMETER, self._parameter_name)

    def files(self) -> dict[str, str]:
        """Module name -> source."""
        groups = sorted({resource.group for resource in RESOURCES.values()})
        return {group: self._source(group) for group in groups}

    def _source(self, group: str) -> str:
        classes = [
            self._class(resource) for resource in RESOURCES.values() if resource.group == group
        ]
        body = "\n\n".join(classes)
        lines = [f'"""Operations of {title(group)}, from the OpenAPI document."""', ""]
        lines += typing_imports(body)
        lines += self._imports(body)
        return "\n".join([*lines, "", "", body])

    def _imports(self, body: str) -> list[str]:
        lines = ["from ..api import AsyncResource"]
        for module in ("models", "params", "results"):
            if f"{module}." in body:
                lines.append(f"from ... import {module}")
        if "quoted(" in body:
            lines.append("from ...request import quoted")
        if "Media" in body:
            lines.append("from ...media import Media")
        return lines

    def _class(self, resource: ClientResource) -> str:
        head = f"class {resource.generated_name}(AsyncResource):"
        methods: list[str] = []
        # A method 'list' would shadow the type in annotations that follow.
        for name, key in sorted(resource.methods.items(), key=lambda item: item[0] == "list"):
            methods.append(self._method(name, self._document.operations[key]))
        return "\n".join([head, "\n".join(methods)])

    def _method(self, name: str, operation: Operation) -> str:
        if _is_task(operation):
            return self._task(name, operation)
        if (element := self._element(operation)) is not None:
            return self._pages(name, operation, element)
        if operation.is_text:
            return self._text(name, operation)
        return self._value(name, operation)

    def _value(self, name: str, operation: Operation) -> str:
        assert operation.response is not None
        kind = f"models.{self._models.name(reference(operation.response))}"
        keywords = self._query(operation)
        arguments = [kind, f'"{operation.method}"', _path(operation)]
        if operation.body:
            arguments.append("body=fields")
        if keywords:
            arguments.append(f"query={_dictionary(keywords)}")
        if operation.path in self._media:
            arguments.append(f'media="{self._media[operation.path]}"')
        if operation.is_idempotent:
            arguments.append("is_created=True")
        signature = self._signature(operation, keywords)
        return _function(
            f"async def {name}({signature}) -> {kind}:",
            operation,
            f"return await self._api.value({', '.join(arguments)})",
        )

    def _pages(self, name: str, operation: Operation, element: str) -> str:
        kind = f"models.{element}"
        keywords = self._query(operation)
        is_paged = "limit" in keywords
        query = {key: value for key, value in keywords.items() if key != "limit"}
        arguments = [kind, _path(operation)]
        arguments += ["limit=limit"] if is_paged else ["is_paged=False"]
        if query:
            arguments.append(f"query={_dictionary(query)}")
        return _function(
            f"def {name}({self._signature(operation, keywords)}) -> AsyncIterator[{kind}]:",
            operation,
            f"return self._api.pages({', '.join(arguments)})",
        )

    def _text(self, name: str, operation: Operation) -> str:
        return _function(
            f"async def {name}({self._signature(operation, {})}) -> str:",
            operation,
            f'return await self._api.text("{operation.method}", {_path(operation)})',
        )

    def _task(self, name: str, operation: Operation) -> str:
        media = self._media.get(operation.path)
        arguments = [_path(operation), "fields", *([f'media="{media}"'] if media else [])]
        arguments.append("wait=wait")
        call = f"return await self._api.result({', '.join(arguments)})"
        assert operation.body and operation.response
        unpacked = f"wait: int | None = None, **fields: Unpack[params.{self._body(operation)}]"
        task = self._inputs.get(operation.path)
        if task is None:
            result = self._result(operation.response)
            return _function(f"async def {name}(self, *, {unpacked}) -> {result}:", operation, call)
        is_media = media == task.name
        single = self._qualified(self._parameters.of(task.single, media=is_media))
        many = self._qualified(self._parameters.of(task.many, media=is_media))
        result = self._result(task.result)
        overloads = [
            # A text is also a sequence of texts. The first overload takes it.
            f"    @overload\n    async def {name}(  # pyright: ignore[reportOverlappingOverload]\n"
            f"        self, {task.name}: {single}, *, {unpacked}) -> {result}: ...\n",
            f"    @overload\n    async def {name}("
            f"self, {task.name}: {many}, *, {unpacked}) -> list[{result}]: ...\n",
        ]
        together = f'{{"{task.name}": {task.name}, **fields}}'
        call = call.replace("fields", together, 1)
        head = (
            f"async def {name}(self, {task.name}: object, *, wait: int | None = None, "
            "**fields: object) -> Any:"
        )
        return "\n".join([*overloads, _function(head, operation, call)])

    def _signature(self, operation: Operation, keywords: Mapping[str, str]) -> str:
        parts = ["self", *(f"{name}: str" for name in operation.path_parameters)]
        if keywords:
            parts += ["*", *(f"{name}: {kind} | None = None" for name, kind in keywords.items())]
        if operation.body:
            parts.append(f"**fields: Unpack[params.{self._body(operation)}]")
        return ", ".join(parts)

    def _body(self, operation: Operation) -> str:
        assert operation.body
        return parameters_name(operation.body)

    def _query(self, operation: Operation) -> dict[str, str]:
        """Parameter name -> annotation without None."""
        kinds: dict[str, str] = {}
        for name, parameter in operation.query.items():
            if name not in HIDDEN_QUERY:
                kind = self._qualified(self._parameters.of(parameter["schema"]))
                kinds[name] = kind.removesuffix(" | None")
        return kinds

    def _element(self, operation: Operation) -> str | None:
        """Returns the class of the elements of a list. None if the response is another one."""
        items = self._document.elements(operation)
        return Annotations(TypeUse.RESPONSE, self._models.name).of(items) if items else None

    def _result(self, schema: Schema) -> str:
        return _prefixed(self._results.of(schema), "results")

    def _qualified(self, kind: str) -> str:
        return _prefixed(kind, "params")

    def _parameter_name(self, schema_name: str) -> str:
        is_enum = "enum" in self._document.schemas[schema_name]
        return class_name(schema_name) if is_enum else parameters_name(schema_name)


BUILTIN = {"Literal", "Any", "Sequence", "Mapping", "Media", "None"}


def _prefixed(kind: str, module: str) -> str:
    """Puts a module before the names of its classes."""
    out: list[str] = []
    word = ""
    is_text = False
    for character in f"{kind} ":
        if character == '"':
            is_text = not is_text
        if not is_text and (character.isalnum() or character == "_"):
            word += character
            continue
        is_class = word[:1].isupper() and word not in BUILTIN
        out += [f"{module}.{word}" if is_class else word, character]
        word = ""
    return "".join(out)[:-1]


def _is_task(operation: Operation) -> bool:
    return any(
        operation.key in resource.methods.values()
        for resource in RESOURCES.values()
        if resource.group.startswith("tasks")
    )


def _path(operation: Operation) -> str:
    path = operation.path
    for name in operation.path_parameters:
        path = path.replace(f"{{{name}}}", f"{{quoted({name})}}")
    return f'f"{path}"' if operation.path_parameters else f'"{path}"'


def _dictionary(names: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"


def _function(head: str, operation: Operation, call: str) -> str:
    said = operation.summary if _is_task(operation) else operation.text
    text = f"`{operation.key}`: {said}"
    lines = textwrap.wrap(text, WIDTH - 14, break_long_words=False, break_on_hyphens=False)
    end = '"""' if len(lines) == 1 else '\n        """'
    doc = "\n        ".join(lines)
    return f'    {head}\n        """{doc}{end}\n        {call}\n'


def resources_source() -> str:
    """Returns the module of the class that has all resources as attributes."""
    extended = [r.name for r in RESOURCES.values() if r.is_extended]
    lines = [
        '"""All resources of a server, from the OpenAPI document."""',
        "",
        "from .api import AsyncApi",
        f"from .extended import {', '.join(f'Async{n}' for n in ['Events', 'Tasks', *extended])}",
    ]
    plain: dict[str, list[str]] = {}
    shown = {n: r for n, r in RESOURCES.items() if not r.group.startswith("tasks")}
    for resource in shown.values():
        if not resource.is_extended:
            plain.setdefault(resource.group, []).append(resource.generated_name)
    lines += [f"from .operations.{group} import {', '.join(n)}" for group, n in plain.items()]
    lines += [
        "",
        "",
        "class AsyncResources:",
        '    """The resources of a server."""',
        "",
        "    def __init__(self, api: AsyncApi) -> None:",
        *(f"        self.{name} = Async{r.name}(api)" for name, r in shown.items()),
        "        self.events = AsyncEvents(api)",
        "        self.tasks = AsyncTasks(api)",
        "",
    ]
    return "\n".join(lines)
