"""Operations from both who know them: the live plane, which knows how they stand, and the record, which keeps them."""

from __future__ import annotations

from itertools import takewhile

from app.api.context import AppContext
from app.api.problems import ProblemError, not_found
from app.api.views import operation_row
from core.errors import UnknownNameError
from web import rows


def find_operation(context: AppContext, operation_id: str) -> rows.Operation:
    """Return an operation from the live plane, else from the record.

    Raises:
        ProblemError: Neither knows it.
    """
    if context.control is not None:
        try:
            return operation_row(context.control.operation(operation_id), context.source.run())
        except UnknownNameError:
            pass
    cursor: str | None = None
    while found := context.source.operations(1000, cursor):
        for one in found:
            if one.id == operation_id:
                return one
        cursor = found[-1].id
    raise ProblemError(not_found(f"no operation {operation_id!r} in this run"))


def list_operations(context: AppContext, limit: int, cursor: str | None) -> tuple[rows.Operation, ...]:
    """Return at most ``limit`` operations newest first, those made before operation ``cursor``.

    The record is a moment behind, so what only the plane knows is newer than all that the record has.
    """
    recorded = context.source.operations(limit, None)
    ahead = _not_recorded(context, recorded)
    ids = [one.id for one in ahead]
    if cursor is not None and cursor not in ids:
        return tuple(_fresh(context, one) for one in context.source.operations(limit, cursor))
    begin = 0 if cursor is None else ids.index(cursor) + 1
    found: dict[str, rows.Operation] = {one.id: one for one in ahead[begin:]}
    for one in recorded:
        found.setdefault(one.id, _fresh(context, one))
    return tuple(found.values())[:limit]


def _not_recorded(context: AppContext, recorded: tuple[rows.Operation, ...]) -> tuple[rows.Operation, ...]:
    if context.control is None:
        return ()
    known = {one.id for one in recorded}
    ahead = takewhile(lambda one: one.id not in known, reversed(context.control.operations()))
    run = context.source.run()
    return tuple(operation_row(one, run) for one in ahead)


def _fresh(context: AppContext, known: rows.Operation) -> rows.Operation:
    """Return what the live plane says of an operation, as the record is a moment behind."""
    if context.control is None:
        return known
    try:
        return operation_row(context.control.operation(known.id), context.source.run())
    except UnknownNameError:
        return known
