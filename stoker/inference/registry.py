"""All operations, by path."""

from collections.abc import Mapping
from typing import Any

from stoker.inference import tasks
from stoker.inference.openai import registry as openai
from stoker.inference.operation import Operation

OPERATIONS: Mapping[str, Operation[Any]] = {
    path: operation
    for operation in (*tasks.OPERATIONS, *openai.OPERATIONS)
    for path in operation.paths
}
