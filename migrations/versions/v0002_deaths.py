"""Deaths, latency histograms, gaps, clocks, and what live changes leave behind.

Tables only grow by columns at their end, so that no big table is ever copied. What can be known of an older run is
filled in: its deaths from its workers, its histograms from its calls.
"""

from __future__ import annotations

import math

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_N_LEVELS = 6
_NO_TEXT, _ZERO = sa.text("''"), sa.text("0")


def upgrade() -> None:
    """Add columns and tables, and fill what can be."""
    for table, column in (
        ("run", sa.Column("journal", sa.String(), server_default=sa.text("'wal'"), nullable=False)),
        ("pool_generation", sa.Column("operation_uid", sa.String(), server_default=_NO_TEXT, nullable=False)),
        ("worker", sa.Column("clock_offset_ns", sa.Integer(), nullable=True)),
        ("worker", sa.Column("clock_error_ns", sa.Integer(), nullable=True)),
        ("call", sa.Column("serialise_ns", sa.Integer(), server_default=_ZERO, nullable=False)),
        ("rank_span", sa.Column("serialise_ns", sa.Integer(), server_default=_ZERO, nullable=False)),
        ("operation", sa.Column("progress", sa.String(), server_default=_NO_TEXT, nullable=False)),
        ("operation", sa.Column("plan", sa.String(), server_default=_NO_TEXT, nullable=False)),
        ("operation", sa.Column("safe_point_ns", sa.Integer(), server_default=_ZERO, nullable=False)),
        ("operation", sa.Column("stand_still_ns", sa.Integer(), server_default=_ZERO, nullable=False)),
    ):
        op.add_column(table, column)
    _clock_anchor()
    _gap()
    _group_generation()
    _death()
    _latency()
    _stall()
    _fill_deaths()
    _fill_latency()


def downgrade() -> None:
    """Refuse: a run's file is only ever moved forward."""
    raise NotImplementedError("a run's file is never moved back; open it with the Podium that wrote it")


def _clock_anchor() -> None:
    op.create_table(
        "clock_anchor",
        sa.Column("at_ns", sa.Integer(), nullable=False),
        sa.Column("wall_ns", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("at_ns", name=op.f("pk_clock_anchor")),
    )


def _gap() -> None:
    op.create_table(
        "gap",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("from_ns", sa.Integer(), nullable=False),
        sa.Column("to_ns", sa.Integer(), nullable=False),
        sa.Column("n_events", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gap")),
    )


def _group_generation() -> None:
    op.create_table(
        "group_generation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.Integer(), nullable=False),
        sa.Column("pool_id", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("at_ns", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["worker_group.id"], name=op.f("fk_group_generation_group_id_worker_group")
        ),
        sa.ForeignKeyConstraint(["pool_id"], ["pool.id"], name=op.f("fk_group_generation_pool_id_pool")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_group_generation")),
    )
    op.create_index(op.f("ix_group_generation_group_id"), "group_generation", ["group_id"], unique=False)


def _death() -> None:
    op.create_table(
        "death",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at_ns", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.Integer(), nullable=False),
        sa.Column("lane_id", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Integer(), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("actor_id", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("signal", sa.Integer(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("oom", sa.Boolean(), nullable=True),
        sa.Column("evidence", sa.String(), nullable=False),
        sa.Column("memory_bytes", sa.Integer(), nullable=False),
        sa.Column("memory_limit_bytes", sa.Integer(), nullable=False),
        sa.Column("others", sa.String(), nullable=False),
        sa.Column("log_tail", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("method", sa.String(), nullable=False),
        sa.Column("call_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["worker_group.id"], name=op.f("fk_death_group_id_worker_group")),
        sa.ForeignKeyConstraint(["lane_id"], ["lane.id"], name=op.f("fk_death_lane_id_lane")),
        sa.ForeignKeyConstraint(["worker_id"], ["worker.id"], name=op.f("fk_death_worker_id_worker")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_death")),
    )


def _latency() -> None:
    op.create_table(
        "latency",
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("method_id", sa.Integer(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("level", "method_id", "bucket", "slot", name=op.f("pk_latency")),
        sqlite_with_rowid=False,
    )


def _stall() -> None:
    op.create_table(
        "stall",
        sa.Column("call_id", sa.Integer(), nullable=False),
        sa.Column("at_ns", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("ranks", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("call_id", name=op.f("pk_stall")),
    )


def _fill_deaths() -> None:
    op.execute(
        "INSERT INTO death SELECT row_number() OVER (ORDER BY w.ended_ns, w.id), w.ended_ns, l.group_id, l.id, w.id, "
        "l.rank, w.pid, w.node, g.name, w.name, w.actor_id, w.reason, 0, NULL, NULL, '', 0, 0, '', '', '', '', 0 "
        "FROM worker w JOIN lane l ON l.id = w.lane_id JOIN worker_group g ON g.id = l.group_id "
        "WHERE w.state = 'died' AND w.ended_ns IS NOT NULL"
    )


def _fill_latency() -> None:
    # SQLite may have been built without logarithms.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.create_function("slot_of", 1, lambda ns: int(4 * math.log2(ns)) if ns > 1 else 0, deterministic=True)
    for level in range(_N_LEVELS):
        op.execute(
            f"INSERT INTO latency SELECT {level}, method_id, started_ns / {10**9 * 4**level} AS bucket, "
            "slot_of(ended_ns - started_ns) AS slot, count(*) FROM call WHERE ended_ns IS NOT NULL "
            "GROUP BY method_id, bucket, slot"
        )
