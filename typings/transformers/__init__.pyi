"""Opaque to the type checker: following it into thousands of model files takes a minute."""

from typing import Any

def __getattr__(name: str) -> Any: ...
