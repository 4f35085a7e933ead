"""Answers as JSON bytes, made in one go: a response model over a long list would cost the driver most of its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import orjson
from starlette.responses import Response


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return ``value`` (dataclasses, tuples, dicts) as JSON; numbers that JSON does not know become null."""
    return Response(as_json(value), status_code=status, headers=dict(headers or {}), media_type="application/json")


def as_json(value: object) -> bytes:
    """Return ``value`` as JSON.

    A name or an error's text is the user's own and may hold half of a surrogate pair, which no UTF-8 can carry: a
    question mark stands for it.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:
        return orjson.dumps(_plain(value), option=orjson.OPT_SERIALIZE_NUMPY)


def page(items: object, next_cursor: int | str | None) -> dict[str, Any]:
    """Return a list's page; ``next_cursor`` is null on the last one."""
    return {"items": items, "next_cursor": next_cursor}


def _plain(value: object) -> object:
    """Return ``value`` with every text as UTF-8 can carry it; bytes, which a foreign file may hold, as text."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case bytes():
            return value.decode("utf-8", "replace")
        case dict():
            return {_plain(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value
