"""All operations, by path."""

from collections.abc import Mapping
from typing import Any

from stoker.inference import tasks
from stoker.inference.anthropic import registry as anthropic
from stoker.inference.openai import registry as openai
from stoker.inference.operation import Operation
from stoker.inference.other_servers import registry as other_servers

OF_OTHER_APIS: tuple[Operation[Any], ...] = (
    *openai.OPERATIONS,
    *anthropic.OPERATIONS,
    *other_servers.OPERATIONS,
)
"""Operations that follow another provider's or server's API."""
OPERATIONS: Mapping[str, Operation[Any]] = {
    path: operation for operation in (*tasks.OPERATIONS, *OF_OTHER_APIS) for path in operation.paths
}
