"""Compares Stoker's answers with the expected ones, within the tolerance of half precision."""

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NUMBER_TOLERANCE = 0.02
"""Largest difference of two numbers, absolute or relative, whichever is larger."""
SCORE_TOLERANCE = 0.2
"""Largest difference of a score. bfloat16 changes single scores of BERT-base by 0.1."""
MEAN_SCORE_TOLERANCE = 0.02
CLEAR_SCORE = 0.7
"""Lowest expected score at which another label is wrong. Below it, two labels may be close."""
LEAST_COSINE = 0.999
PIXEL_TOLERANCE = 8.0
"""Largest mean difference of two images, of 255."""
LENGTH_TOLERANCE = 0.1
"""Largest relative difference in length of two sounds or videos."""
LEAD_TOLERANCE = 0.5
"""Largest lead of the best token over a token that was chosen greedily, in standard deviations of
all logits. Rounding to bfloat16 causes 0.1. A token chosen at random is about 4 behind.
"""
_VARYING = {
    "id",
    "created",
    "created_at",
    "url",
    "usage",
    "duration",
    "system_fingerprint",
    "model",
}
"""Fields that differ between two equal calls."""
_IMAGES = ("b64_json", "bytes", "mask", "depth")


@dataclass
class Difference:
    """Differences of two answers. `wrong` holds those beyond the tolerance."""

    wrong: list[str] = field(default_factory=list[str])
    largest_number: float = 0.0
    largest_pixel: float = 0.0


def difference(expected: Any, actual: Any, path: str = "", found: Any = None) -> Difference:
    """Compares two JSON answers of the same call."""
    result: Difference = found or Difference()
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name, value in expected.items():
            place = f"{path}.{name}"
            if name not in actual:
                result.wrong.append(f"{place} is missing")
            elif name in _IMAGES and isinstance(value, str) and value != actual[name]:
                _compare_media(value, actual[name], place, result)
            elif name not in _VARYING:
                difference(value, actual[name], place, result)
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            result.wrong.append(f"{path} has {len(actual)} entries instead of {len(expected)}")
        for number, pair in enumerate(zip(expected, actual, strict=False)):
            difference(*pair, f"{path}[{number}]", result)
    elif _is_number(expected) and _is_number(actual):
        gap = abs(expected - actual)
        result.largest_number = max(result.largest_number, gap)
        if not gap <= NUMBER_TOLERANCE * max(1.0, abs(expected)):
            result.wrong.append(f"{path} is {actual:g} instead of {expected:g}")
    elif expected != actual:
        result.wrong.append(f"{path} is {str(actual)[:40]!r} instead of {str(expected)[:40]!r}")
    return result


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compare_media(expected: str, actual: Any, path: str, result: Difference) -> None:
    """Compares base64 content by pixels, or by length if it is no image."""
    contents = [base64.b64decode(str(text).split(",")[-1]) for text in (expected, actual)]
    try:
        first, second = (_pixels(content) for content in contents)
    except OSError:
        longer, shorter = max(map(len, contents)), min(map(len, contents))
        if longer - shorter > LENGTH_TOLERANCE * longer:
            result.wrong.append(f"{path} has {len(contents[1])} bytes, not {len(contents[0])}")
        return
    if first.shape != second.shape:
        result.wrong.append(f"{path} has the shape {second.shape} instead of {first.shape}")
        return
    gap = float(abs(first - second).mean())
    result.largest_pixel = max(result.largest_pixel, gap)
    if gap > PIXEL_TOLERANCE:
        result.wrong.append(f"{path} differs by {gap:.1f} of 255")


def _pixels(content: bytes) -> Any:
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), dtype=float)


def wrong_labels(
    expected: Sequence[Mapping[str, Any]], actual: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> str:
    """Returns the first wrong label or score. Empty if all are right.

    Args:
        names: fields that must be equal, except for a label with a low score.
    """
    if len(expected) != len(actual):
        return f"{len(actual)} entries instead of {len(expected)}"
    for wanted, got in zip(expected, actual, strict=True):
        if any(wanted[name] != got.get(name) for name in names):
            if wanted["score"] >= CLEAR_SCORE:
                return f"{dict(got)} instead of {dict(wanted)}"
        elif not abs(wanted["score"] - got["score"]) <= SCORE_TOLERANCE:
            return f"score {got['score']:g} instead of {wanted['score']:g}"
    return ""


def wrong_scores(
    pairs: Iterable[tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]],
) -> str:
    """Returns the mean difference of the scores of many expected and actual answers, if it is too
    large.
    """
    gaps = [
        abs(wanted["score"] - got["score"])
        for expected, actual in pairs
        for wanted, got in zip(expected, actual, strict=False)
    ]
    mean = sum(gaps) / max(1, len(gaps))
    return "" if mean <= MEAN_SCORE_TOLERANCE else f"scores differ by {mean:.3f} on average"


def wrong_vector(expected: Sequence[Sequence[float]], number: int, actual: Sequence[float]) -> str:
    """Returns why a vector is not the expected one. Empty if it is.

    Args:
        expected: vectors of all inputs. Another input's vector must not be closer.
        number: number of the vector's own input.
    """
    import numpy as np

    wanted = np.asarray(expected, dtype=float)
    vector = np.asarray(actual, dtype=float)
    if vector.shape != wanted[number].shape:
        return f"{vector.size} numbers instead of {wanted[number].size}"
    cosines = wanted @ vector / (np.linalg.norm(wanted, axis=1) * np.linalg.norm(vector))
    if not cosines[number] >= LEAST_COSINE:
        return f"cosine {cosines[number]:.5f}"
    nearest = int(cosines.argmax())
    if nearest != number and not math.isclose(cosines[nearest], cosines[number], abs_tol=1e-6):
        return f"closer to the vector of input {nearest}"
    return ""


def wrong_leads(leads: Sequence[float]) -> str:
    """Returns the first lead of a better token over a chosen one that is too large."""
    # NaN is not below the tolerance.
    wrong = [lead for lead in leads if not lead <= LEAD_TOLERANCE]
    return f"a token is {wrong[0]:.2f} deviations below the best" if wrong else ""
