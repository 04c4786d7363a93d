"""Receivers of a replica's reports about its model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker.runtime.interface import LoadError
from stoker.wire.notices import PRECISION, Notice, bounded
from stoker.wire.protocol import ChosenPrecision, Sharing


@dataclass(frozen=True)
class ReplicaCallbacks:
    on_calibrated: Callable[[str, int], None] = lambda _engine, _budget: None
    on_sharing: Callable[[Sharing], None] = lambda _sharing: None
    on_precision: Callable[[ChosenPrecision], None] = lambda _precision: None
    on_precision_changed: Callable[[ChosenPrecision, Sequence[Notice]], None] = (
        lambda _precision, _notices: None
    )
    on_load_failed: Callable[[LoadError], None] = lambda _problem: None
    on_recording_lost: Callable[[str], None] = lambda _name: None


def bounded_precision(precision: ChosenPrecision) -> ChosenPrecision:
    """Returns the choice with a message within the limits of notices."""
    (notice,) = bounded([Notice(PRECISION, precision.message)])
    return ChosenPrecision(precision.dtype, notice.message)
