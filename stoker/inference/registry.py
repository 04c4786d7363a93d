"""All operations, by path."""

from collections.abc import Mapping
from typing import Any

from stoker.inference import tasks
from stoker.inference.anthropic import registry as anthropic
from stoker.inference.openai import registry as openai
from stoker.inference.operation import Operation

OF_OTHER_APIS: tuple[Operation[Any], ...] = (*openai.OPERATIONS, *anthropic.OPERATIONS)
"""Operations that follow another provider's API."""
OPERATIONS: Mapping[str, Operation[Any]] = {
    path: operation for operation in (*tasks.OPERATIONS, *OF_OTHER_APIS) for path in operation.paths
}
