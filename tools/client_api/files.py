"""Writes all generated files of the client."""

import copy
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from stoker.client.media import MEDIA, VIDEOS
from tools.client_api.annotations import Annotations, TypeUse
from tools.client_api.classes import ClassModules, class_name
from tools.client_api.document import Document, Operation, Schema
from tools.client_api.methods import MethodWriter, TaskInput, resources_source
from tools.client_api.results import results_source
from tools.client_api.synchronous import synchronous
from tools.client_api.table import RESOURCES

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "stoker" / "client"
TRANSPORT = CLIENT / "async_transport.py"
NOTE = "# `python -m tools.client_api` writes this file.\n"


def sources() -> dict[str, str]:
    """Path in stoker/client -> source, formatted."""
    generated = {path: NOTE + source for path, source in _generated().items()}
    by_hand = [TRANSPORT, *(CLIENT / "aio").glob("*.py")]
    asynchronous = {
        path.relative_to(CLIENT).as_posix(): path.read_text()
        for path in by_hand
        if path.stem != "__init__"
    } | {path: source for path, source in generated.items() if path.startswith("aio/")}
    twins = {
        re.sub("^(aio/|async_)", _twin_prefix, path): synchronous(source.removeprefix(NOTE))
        for path, source in asynchronous.items()
    }
    return _formatted(generated | twins)


def _twin_prefix(prefix: re.Match[str]) -> str:
    return "sync/" if prefix[0] == "aio/" else ""


def _generated() -> dict[str, str]:
    document = Document.read()
    operations = {
        key: (resource, document.operations[key])
        for resource in RESOURCES.values()
        for key in resource.methods.values()
    }
    media = {path: taking.media for path, taking in MEDIA.items()} | {VIDEOS: "input_reference"}
    inputs: dict[str, TaskInput] = {}
    for resource, operation in operations.values():
        if operation.method == "POST" and operation.path in media:
            schema = document.schemas[str(operation.body)]
            schema["properties"][media[operation.path]]["x-media"] = True
        if resource.group.startswith("tasks") and (task := task_input(document, operation)):
            inputs[operation.path] = task
            # The input is an argument of its own.
            schema = copy.deepcopy(document.schemas[str(operation.body)])
            del schema["properties"][task.name]
            schema["required"].remove(task.name)
            document.schemas[str(operation.body)] = schema
    models = ClassModules(document, TypeUse.RESPONSE, "Responses")
    params = ClassModules(document, TypeUse.PARAMETER, "Parameters")
    for resource, operation in operations.values():
        if operation.body:
            params.add(resource.group, {"$ref": f"#/components/schemas/{operation.body}"})
        for name in operation.query:
            params.add(resource.group, operation.query[name]["schema"])
        if operation.response and not resource.group.startswith("tasks"):
            models.add(resource.group, document.elements(operation) or operation.response)
    for task in inputs.values():
        for group, key in ((r.group, o.path) for r, o in operations.values()):
            if inputs.get(key) is task:
                params.add(group, task.many)
    results = Annotations(TypeUse.RESULT, class_name)
    writer = MethodWriter(document, models, results, media, inputs)
    files = {f"aio/operations/{name}.py": source for name, source in writer.files().items()}
    files["aio/operations/__init__.py"] = (
        '"""Operations of the API, from the OpenAPI document."""\n'
    )
    files["aio/resources.py"] = resources_source()
    files["results.py"] = results_source(
        document, results, [o for r, o in operations.values() if r.group.startswith("tasks")]
    )
    for folder, modules in (("models", models), ("params", params)):
        files |= {f"{folder}/{name}.py": source for name, source in modules.files().items()}
    return files


def task_input(document: Document, operation: Operation) -> TaskInput | None:
    """Returns the field that takes one input or a list, if exactly one field does."""
    assert operation.body and operation.response
    properties: Mapping[str, Schema] = document.schemas[operation.body]["properties"]
    fields = [name for name, schema in properties.items() if _takes_lists(schema)]
    choices: list[Schema] = operation.response.get("anyOf", [])
    if len(fields) != 1 or len(choices) != 2 or choices[1].get("items") != choices[0]:
        return None
    (name,) = fields
    single, many = properties[name]["oneOf"]
    return TaskInput(name, single, many, choices[0])


def _takes_lists(schema: Schema) -> bool:
    choices: list[Schema] = schema.get("oneOf", [])
    return len(choices) == 2 and choices[1].get("type") == "array" and "items" in choices[1]


def _formatted(files: Mapping[str, str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "client"
        for name, source in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        ruff = [str(Path(sys.executable).with_name("ruff"))]
        settings = ["--config", str(ROOT / "pyproject.toml"), "--quiet", str(root)]
        fixes = ["check", "--select", "I,F401,UP028", "--fix", "--unsafe-fixes", "--exit-zero"]
        subprocess.run([*ruff, *fixes, *settings], check=True)
        subprocess.run([*ruff, "format", *settings], check=True)
        return {name: (root / name).read_text() for name in files}
