"""An answer that came in parts, as one document: so that two can be compared."""

import json
from typing import Any, cast

_END = b"[DONE]"


def folded(content: bytes) -> bytes:
    """Server-sent events as one JSON document: what their texts come to, in each place.

    The parts of two equal answers need not be cut alike. Whatever else is streamed, as sound, stays
    as it is. See https://html.spec.whatwg.org/multipage/server-sent-events.html
    """
    if not content.lstrip().startswith((b"data:", b"event:", b":")):
        return content
    whole: dict[str, Any] = {}
    for event in content.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line for line in event.split(b"\n") if line.startswith(b"data:")]
        data = b"\n".join(line.removeprefix(b"data:").strip() for line in lines)
        if not data or data == _END:
            continue
        try:
            part = json.loads(data)
        except ValueError:
            return content
        if isinstance(part, dict):
            _add(whole, cast("dict[str, Any]", part))
    return json.dumps(whole).encode()


def _add(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        known = whole.get(name)
        if isinstance(known, str) and isinstance(value, str):
            whole[name] = known + value
        elif isinstance(value, dict):
            if not isinstance(known, dict):
                known = whole[name] = {}
            _add(cast("dict[str, Any]", known), cast("dict[str, Any]", value))
        elif isinstance(value, list):
            if not isinstance(known, list):
                known = whole[name] = []
            _extend(cast("list[Any]", known), cast("list[Any]", value))
        elif value is not None or name not in whole:
            whole[name] = value


def _extend(whole: list[Any], part: list[Any]) -> None:
    """What names its place in the list goes on there; all else follows."""
    for one in part:
        place = _place(one)
        known: Any = next(
            (other for other in whole if place is not None and _place(other) == place), None
        )
        if known is None:
            whole.append(one)
        else:
            _add(known, one)


def _place(value: Any) -> Any:
    return cast("dict[str, Any]", value).get("index") if isinstance(value, dict) else None
