"""``GET /api/v1/stream``: the live channel, by FastAPI's own server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header
from fastapi.sse import EventSourceResponse, ServerSentEvent

from app.api.context import Context, no_query
from app.api.documents import PROBLEMS
from app.api.problems import Problem, ProblemError
from app.api.responses import as_json

router = APIRouter(prefix="/api/v1", responses=PROBLEMS)


def reserve_stream(context: Context) -> Iterator[None]:
    """Count the stream against the limit of open streams until it ends.

    Raises:
        ProblemError: The limit is reached; a browser polls instead.
    """
    if not context.seats.take():
        detail = f"the limit of {context.settings.limits.n_streams} open streams is reached; close one, or poll"
        later = (("Retry-After", "5"),)
        raise ProblemError(Problem(503, "too-many-streams", "Too many streams", detail, headers=later))
    try:
        yield
    finally:
        context.seats.give_back()


@router.get(
    "/stream",
    operation_id="stream",
    tags=["stream"],
    response_class=EventSourceResponse,
    dependencies=[Depends(no_query), Depends(reserve_stream)],
)
async def stream(
    context: Context, last_event_id: Annotated[str | None, Header(max_length=100)] = None
) -> AsyncIterator[ServerSentEvent]:
    """Say that something changed: tick, pool, operation, resync; ping when nothing did; end when nothing will come."""
    last_seq = int(last_event_id) if last_event_id is not None and last_event_id.isdecimal() else None
    if last_event_id is not None and last_seq is None:
        last_seq = -1
    async for news in context.hub.listen(last_seq):
        yield ServerSentEvent(event=news.event, raw_data=as_json(news.data).decode(), id=str(news.seq))
