"""Comparison of answers, for trials and mirrors."""

from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resource
from stoker.workloads.evaluation.replay.comparer import Comparer


def _comparer(_parts: ServerParts) -> Comparer:
    return Comparer()


RESOURCE = Resource(
    name="replay",
    parts=[_comparer],
    closing={"comparisons": lambda parts: parts.get(Comparer).close()},
)
