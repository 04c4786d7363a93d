"""Folds an answer that was streamed in parts into one document, so that it can be compared."""

import json
from typing import Any, cast

_END = b"[DONE]"


def folded(content: bytes) -> bytes:
    """Folds server-sent events into one JSON document, with the texts of each place joined.

    Two equal answers may be split into different parts. Other streamed content, such as sound,
    stays unchanged. See https://html.spec.whatwg.org/multipage/server-sent-events.html
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
    """Adds a list's entries. An entry with an index extends the entry with the same index; others
    are appended.
    """
    for entry in part:
        place = _place(entry)
        known: Any = next(
            (other for other in whole if place is not None and _place(other) == place), None
        )
        if known is None:
            whole.append(entry)
        else:
            _add(known, entry)


def _place(value: Any) -> Any:
    return cast("dict[str, Any]", value).get("index") if isinstance(value, dict) else None
