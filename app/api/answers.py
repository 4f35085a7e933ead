"""Answers as JSON bytes, made in one go: a response model over a long list would cost the driver most of its time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return ``value`` (dataclasses, tuples, dicts) as JSON; numbers that JSON does not know become null."""
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status_code=status, headers=dict(headers or {}), media_type="application/json")


def page(items: object, next_cursor: int | str | None) -> dict[str, Any]:
    """Return a list's page; ``next_cursor`` is null on the last one."""
    return {"items": items, "next_cursor": next_cursor}
