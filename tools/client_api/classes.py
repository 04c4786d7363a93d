"""Writes Structs of responses, and TypedDicts of bodies and results."""

import keyword
import re
import textwrap
from collections.abc import Iterable, Mapping

from tools.client_api.annotations import Annotations, TypeUse, literal, repr_of
from tools.client_api.document import Document, Schema

COMMON = "common"
WIDTH = 96


def title(group: str) -> str:
    """Returns the words of a module's name: `text tasks` for `tasks_text`."""
    return " ".join(reversed(group.split("_")))


def class_name(schema_name: str) -> str:
    """Returns the class of a schema. A module's path becomes a word: `ArtifactAdapter`."""
    *modules, name = schema_name.split("__")
    return f"{modules[-2].removesuffix('s').title()}{name}" if modules else name


def parameters_name(schema_name: str) -> str:
    """Returns the TypedDict of a body or of one of its parts."""
    return f"{class_name(schema_name).removesuffix('Request')}Params"


class ClassModules:
    """Divides schemas among modules: one a group, and one for schemas of several groups."""

    def __init__(self, document: Document, use: TypeUse, what: str) -> None:
        self._document = document
        self._use = use
        self._what = what
        self._groups: dict[str, set[str]] = {}

    def add(self, group: str, schema: Schema) -> None:
        for name in self._document.reached(schema):
            self._groups.setdefault(name, set()).add(group)

    def name(self, schema_name: str) -> str:
        schema = self._document.schemas[schema_name]
        if self._use is TypeUse.PARAMETER and "enum" not in schema:
            return parameters_name(schema_name)
        return class_name(schema_name)

    def module(self, schema_name: str) -> str:
        groups = self._groups[schema_name]
        return next(iter(groups)) if len(groups) == 1 else COMMON

    def files(self) -> dict[str, str]:
        """Module name -> source."""
        modules: dict[str, set[str]] = {}
        for name in self._groups:
            modules.setdefault(self.module(name), set()).add(name)
        sources = {module: self._source(module, names) for module, names in modules.items()}
        return sources | {"__init__": self._exports(modules)}

    def _source(self, module: str, names: set[str]) -> str:
        annotations = Annotations(self._use, self.name)
        ordered = self._document.ordered(names)
        blocks = [self._block(name, annotations) for name in ordered]
        inline = [self._class(title, schema, annotations) for title, schema in _items(annotations)]
        body = "\n\n".join([*inline, *blocks])
        foreign = self._document.reached({"anyOf": [self._document.schemas[n] for n in names]})
        imported = sorted(
            self.name(name) for name in foreign - names if _uses(body, self.name(name))
        )
        lines = [
            f'"""{self._what} of {title(module)}, from the OpenAPI document."""',
            "",
        ]
        lines += typing_imports(body)
        if self._use is TypeUse.RESPONSE:
            lines.append("import msgspec")
        if _uses(body, "Media"):
            lines.append("from ..media import Media")
        if imported:
            lines.append(f"from .{COMMON} import {', '.join(imported)}")
        return "\n".join([*lines, "", "", body, ""])

    def _exports(self, modules: Mapping[str, set[str]]) -> str:
        lines = [f'"""{self._what} of the API, from the OpenAPI document."""', ""]
        for module, names in sorted(modules.items()):
            lines += [f"from .{module} import {n} as {n}" for n in sorted(map(self.name, names))]
        return "\n".join([*lines, ""])

    def _block(self, schema_name: str, annotations: Annotations) -> str:
        schema, name = self._document.schemas[schema_name], self.name(schema_name)
        if "enum" not in schema:
            return self._class(name, schema, annotations)
        values = literal(schema)
        if self._use is not TypeUse.RESPONSE:
            return f"{name}: TypeAlias = {values}\n"
        # msgspec accepts new values of a newer server. Type checkers know the present ones.
        return (
            f"if TYPE_CHECKING:\n    {name}: TypeAlias = {values} | str\nelse:\n    {name} = str\n"
        )

    def _class(self, name: str, schema: Schema, annotations: Annotations) -> str:
        required = set(schema.get("required", ()))
        properties: Mapping[str, Schema] = schema["properties"]
        if self._use is TypeUse.RESPONSE:
            head = f"class {name}(msgspec.Struct, kw_only=True):"
            fields = [
                _described(_struct_field(n, s, n in required, annotations), s)
                for n, s in properties.items()
            ]
        else:
            total = "" if required == set(properties) else ", total=False"
            head = f"class {name}(TypedDict{total}):"
            fields = [
                _described(_key(n, s, n in required and bool(total), annotations), s)
                for n, s in properties.items()
            ]
        return "\n".join([head, *docstring(schema), *fields, ""])


def docstring(schema: Schema) -> list[str]:
    text = " ".join(str(schema.get("description", "")).partition("\n\n")[0].split())
    if not text:
        return []
    text = text.replace("\\", "\\\\")
    lines = textwrap.wrap(text, WIDTH - 10, break_long_words=False, break_on_hyphens=False)
    if len(lines) == 1:
        return [f'    """{lines[0]}"""', ""]
    return [f'    """{lines[0]}', *(f"    {line}" for line in lines[1:]), '    """', ""]


def _described(field: str, schema: Schema) -> str:
    """Returns a field with its description below, which editors show."""
    return "\n".join([field, *docstring(schema)[:-1]])


def typing_imports(body: str) -> list[str]:
    """Returns the imports that a module's body needs."""
    lines: list[str] = []
    if names := [n for n in ("Iterator", "AsyncIterator", "Mapping", "Sequence") if _uses(body, n)]:
        lines.append(f"from collections.abc import {', '.join(sorted(names))}")
    known = ("TYPE_CHECKING", "Any", "Literal", "Required", "TypeAlias", "TypedDict", "Unpack")
    if names := [n for n in (*known, "cast", "overload") if _uses(body, n)]:
        lines.append(f"from typing import {', '.join(names)}")
    return [*lines, ""] if lines else []


def _uses(body: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", body) is not None


def _items(annotations: Annotations) -> Iterable[tuple[str, Schema]]:
    # Rendering one may add others.
    shown = set[str]()
    while left := [title for title in annotations.inline if title not in shown]:
        for title in left:
            shown.add(title)
            yield title, annotations.inline[title]


def _struct_field(name: str, schema: Schema, is_required: bool, annotations: Annotations) -> str:
    kind = annotations.of(schema)
    attribute = f"{name}_" if keyword.iskeyword(name) else name
    renamed = f'name="{name}"' if attribute != name else ""
    if is_required:
        default = f" = msgspec.field({renamed})" if renamed else ""
        return f"    {attribute}: {kind}{default}"
    value = schema.get("default", schema.get("const"))
    if value is None or isinstance(value, list | dict):
        kind = kind if kind.endswith("None") or kind == "Any" else f"{kind} | None"
        value = None
    if renamed:
        return f"    {attribute}: {kind} = msgspec.field(default={repr_of(value)}, {renamed})"
    return f"    {attribute}: {kind} = {repr_of(value)}"


def _key(name: str, schema: Schema, is_marked: bool, annotations: Annotations) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"the field '{name}' needs a functional TypedDict")
    kind = annotations.of(schema, media=is_media(schema))
    return f"    {name}: {f'Required[{kind}]' if is_marked else kind}"


def is_media(schema: Schema) -> bool:
    """True if the generator marked a field for files and bytes."""
    return bool(schema.get("x-media"))
