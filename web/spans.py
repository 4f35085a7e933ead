"""Where the ranks' spans of one call lie on its page: the geometry of the bars, in percent of the call's window."""

from __future__ import annotations

from dataclasses import dataclass

from web.calls import CallDetail
from web.rows import RankSpan


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a rank's bar: ``kind`` is queued, ran, fetched or unknown; left and width are in percent."""

    kind: str
    left: float
    width: float
    ms: float


@dataclass(frozen=True, slots=True)
class RankRow:
    """A row of a rank on the page of a call; None where it did not report. ``total_ms`` is submission to readiness."""

    span: RankSpan
    queued_ms: float | None
    ran_ms: float | None
    fetched_ms: float | None
    total_ms: float
    over_median_ms: float | None
    is_slowest: bool
    pieces: tuple[Piece, ...]


def rank_rows(detail: CallDetail, now_ms: float) -> tuple[RankRow, ...]:
    """Return the ranks of a call, longest first; a span that is not over ends at ``now_ms``.

    The run's own clock may be a moment behind its spans; now is then the last time that any of them reported.
    """
    if not detail.spans:
        return ()
    now_ms = max(now_ms, *(_last_word_ms(span) for span in detail.spans))
    from_ms = min(span.submitted_ms for span in detail.spans)
    to_ms = max(_end_ms(span, now_ms) for span in detail.spans)
    width_ms = max(to_ms - from_ms, 1e-6)
    rows = [_row(detail, span, now_ms, from_ms, width_ms) for span in detail.spans]
    return tuple(sorted(rows, key=lambda row: (-(row.ran_ms or row.total_ms), row.span.rank)))


def _last_word_ms(span: RankSpan) -> float:
    return max(ms for ms in (span.submitted_ms, span.started_ms, span.finished_ms, span.ready_ms) if ms is not None)


def _end_ms(span: RankSpan, now_ms: float) -> float:
    if span.ready_ms is None and span.status == "running":
        return max(now_ms, _last_word_ms(span))
    return _last_word_ms(span)


def _between(start_ms: float | None, end_ms: float | None) -> float | None:
    return None if start_ms is None or end_ms is None else max(end_ms - start_ms, 0.0)


def _row(detail: CallDetail, span: RankSpan, now_ms: float, from_ms: float, width_ms: float) -> RankRow:
    end_ms = _end_ms(span, now_ms)
    finished_ms = span.finished_ms if span.finished_ms is not None else span.ready_ms
    if finished_ms is None and span.status == "running":
        finished_ms = end_ms
    ran_ms = _between(span.started_ms, finished_ms)
    queued_ms = _between(span.submitted_ms, span.started_ms)
    fetched_ms = _between(span.finished_ms, span.ready_ms)

    def piece(kind: str, start_ms: float, ms: float) -> Piece:
        left = min(max((start_ms - from_ms) / width_ms * 100, 0.0), 100.0)
        return Piece(kind, round(left, 3), round(min(ms / width_ms * 100, 100.0 - left), 3), ms)

    pieces = []
    if span.started_ms is None:
        pieces.append(piece("unknown", span.submitted_ms, end_ms - span.submitted_ms))
    else:
        pieces.append(piece("queued", span.submitted_ms, queued_ms or 0.0))
        pieces.append(piece("ran", span.started_ms, ran_ms or 0.0))
        if span.finished_ms is not None:
            pieces.append(piece("fetched", span.finished_ms, fetched_ms or 0.0))
    return RankRow(
        span=span,
        queued_ms=queued_ms,
        ran_ms=ran_ms,
        fetched_ms=fetched_ms,
        total_ms=end_ms - span.submitted_ms,
        over_median_ms=None if ran_ms is None else ran_ms - detail.median_ms,
        is_slowest=span.rank == detail.slowest_rank,
        pieces=tuple(p for p in pieces if p.ms > 0),
    )
