"""Inspection of uploaded model files by content, without libraries that could run them."""

from stoker.inspection.failure import FailureCode, InspectionError
from stoker.inspection.files import FileReader
from stoker.inspection.inspector import Inspection, inspect
from stoker.inspection.inspectors import InspectorError, Inspectors
from stoker.inspection.names import validate_path

__all__ = [
    "FailureCode",
    "FileReader",
    "Inspection",
    "InspectionError",
    "InspectorError",
    "Inspectors",
    "inspect",
    "validate_path",
]
