"""Inspection of uploaded model files by content, without any library that could run them."""

from stoker.artifacts.inspection.failure import FailureCode, InspectionError
from stoker.artifacts.inspection.files import FileReader
from stoker.artifacts.inspection.inspector import Inspection, inspect
from stoker.artifacts.inspection.names import validate_path

__all__ = [
    "FailureCode",
    "FileReader",
    "Inspection",
    "InspectionError",
    "inspect",
    "validate_path",
]
