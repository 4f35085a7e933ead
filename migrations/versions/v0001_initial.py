"""The first schema of a run's file."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make every table, index and trigger in an empty file."""
    _audit_entry()
    _call()
    _event()
    _operation()
    _pool()
    _rank_span()
    _roll()
    _run()
    _step()
    _word()
    _pool_generation()
    _step_metric()
    _worker_group()
    _lane()
    _method()
    _worker()
    _append_only("audit_entry")


def downgrade() -> None:
    """Refuse: a run's file is only ever moved forward."""
    raise NotImplementedError("a run's file is never moved back; open it with the Podium that wrote it")


def _append_only(table: str) -> None:
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        )


def _audit_entry() -> None:
    op.create_table(
        "audit_entry",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at_ns", sa.Integer(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("remote", sa.String(), nullable=False),
        sa.Column("user_agent", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("expected_generation", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("detail", sa.String(), nullable=False),
        sa.Column("operation_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entry")),
    )


def _call() -> None:
    op.create_table(
        "call",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("method_id", sa.Integer(), nullable=False),
        sa.Column("pool_id", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("dispatch_mode_id", sa.Integer(), nullable=False),
        sa.Column("execute_mode_id", sa.Integer(), nullable=False),
        sa.Column("blocking", sa.Boolean(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("started_ns", sa.Integer(), nullable=False),
        sa.Column("ended_ns", sa.Integer(), nullable=True),
        sa.Column("gate_ns", sa.Integer(), nullable=False),
        sa.Column("dispatch_ns", sa.Integer(), nullable=False),
        sa.Column("execute_ns", sa.Integer(), nullable=False),
        sa.Column("wait_ns", sa.Integer(), nullable=False),
        sa.Column("collect_ns", sa.Integer(), nullable=False),
        sa.Column("unpad_ns", sa.Integer(), nullable=False),
        sa.Column("awaited_ns", sa.Integer(), nullable=True),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("rows_out", sa.Integer(), nullable=False),
        sa.Column("padding_rows", sa.Integer(), nullable=False),
        sa.Column("bytes_out", sa.Integer(), nullable=False),
        sa.Column("bytes_in", sa.Integer(), nullable=False),
        sa.Column("shard_sizes", sa.String(), nullable=False),
        sa.Column("error_type", sa.String(), nullable=True),
        sa.Column("error_message", sa.String(), nullable=True),
        sa.Column("error_traceback", sa.String(), nullable=True),
        sa.Column("error_rank", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_call")),
    )
    op.create_index("ix_call_method_id_id", "call", ["method_id", "id"], unique=False)
    op.create_index("ix_call_started_ns", "call", ["started_ns"], unique=False)
    op.create_index("ix_call_status_id", "call", ["status", "id"], unique=False, sqlite_where=sa.text("status != 1"))
    op.create_index("ix_call_step_id", "call", ["step", "id"], unique=False)


def _event() -> None:
    op.create_table(
        "event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at_ns", sa.Integer(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    op.create_index(op.f("ix_event_at_ns"), "event", ["at_ns"], unique=False)


def _operation() -> None:
    op.create_table(
        "operation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uid", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("who", sa.String(), nullable=False),
        sa.Column("expected_generation", sa.Integer(), nullable=True),
        sa.Column("created_ns", sa.Integer(), nullable=False),
        sa.Column("updated_ns", sa.Integer(), nullable=False),
        sa.Column("before", sa.String(), nullable=False),
        sa.Column("after", sa.String(), nullable=False),
        sa.Column("error", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operation")),
        sa.UniqueConstraint("uid", name=op.f("uq_operation_uid")),
    )


def _pool() -> None:
    op.create_table(
        "pool",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("process_on_nodes", sa.String(), nullable=False),
        sa.Column("use_gpu", sa.Boolean(), nullable=False),
        sa.Column("max_colocate_count", sa.Integer(), nullable=False),
        sa.Column("created_ns", sa.Integer(), nullable=False),
        sa.Column("updated_ns", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pool")),
        sa.UniqueConstraint("name", name=op.f("uq_pool_name")),
    )


def _rank_span() -> None:
    op.create_table(
        "rank_span",
        sa.Column("lane_id", sa.Integer(), nullable=False),
        sa.Column("began_ns", sa.Integer(), nullable=False),
        sa.Column("call_id", sa.Integer(), nullable=False),
        sa.Column("ended_ns", sa.Integer(), nullable=False),
        sa.Column("method_id", sa.Integer(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("said", sa.Integer(), nullable=False),
        sa.Column("submitted_ns", sa.Integer(), nullable=False),
        sa.Column("ready_ns", sa.Integer(), nullable=False),
        sa.Column("clock_error_ns", sa.Integer(), nullable=False),
        sa.Column("rows_in", sa.Integer(), nullable=False),
        sa.Column("rows_out", sa.Integer(), nullable=False),
        sa.Column("bytes_in", sa.Integer(), nullable=False),
        sa.Column("bytes_out", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("lane_id", "began_ns", "call_id", name=op.f("pk_rank_span")),
        sqlite_with_rowid=False,
    )
    op.create_index("uq_rank_span_call_id_lane_id", "rank_span", ["call_id", "lane_id"], unique=True)


def _roll() -> None:
    op.create_table(
        "roll",
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("lane_id", sa.Integer(), nullable=False),
        sa.Column("bucket", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("busy_ns", sa.Integer(), nullable=False),
        sa.Column("max_ns", sa.Integer(), nullable=False),
        sa.Column("max_call_id", sa.Integer(), nullable=False),
        sa.Column("err_n", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("level", "lane_id", "bucket", name=op.f("pk_roll")),
        sqlite_with_rowid=False,
    )


def _run() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uid", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("script", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("podium_version", sa.String(), nullable=False),
        sa.Column("python_version", sa.String(), nullable=False),
        sa.Column("ray_version", sa.String(), nullable=False),
        sa.Column("started_wall_ns", sa.Integer(), nullable=False),
        sa.Column("started_ns", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("clean_exit", sa.Boolean(), nullable=False),
        sa.Column("heartbeat_wall_ns", sa.Integer(), nullable=False),
        sa.Column("last_ns", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("n_recorded", sa.Integer(), nullable=False),
        sa.Column("n_dropped", sa.Integer(), nullable=False),
        sa.Column("n_calls", sa.Integer(), nullable=False),
        sa.Column("n_failed_calls", sa.Integer(), nullable=False),
        sa.Column("writer_lag_ns", sa.Integer(), nullable=False),
        sa.Column("pruned_before_ns", sa.Integer(), nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("ck_run_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
    )


def _step() -> None:
    op.create_table(
        "step",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("started_ns", sa.Integer(), nullable=False),
        sa.Column("ended_ns", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_step")),
    )
    op.create_index(op.f("ix_step_number"), "step", ["number"], unique=False)


def _word() -> None:
    op.create_table(
        "word",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_word")),
        sa.UniqueConstraint("text", name=op.f("uq_word_text")),
    )


def _pool_generation() -> None:
    op.create_table(
        "pool_generation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("pool_id", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("at_ns", sa.Integer(), nullable=False),
        sa.Column("process_on_nodes", sa.String(), nullable=False),
        sa.Column("slots", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["pool_id"], ["pool.id"], name=op.f("fk_pool_generation_pool_id_pool")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pool_generation")),
        sa.UniqueConstraint("pool_id", "generation", name=op.f("uq_pool_generation_pool_id_generation")),
    )


def _step_metric() -> None:
    op.create_table(
        "step_metric",
        sa.Column("step_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["step_id"], ["step.id"], name=op.f("fk_step_metric_step_id_step")),
        sa.PrimaryKeyConstraint("step_id", "name", name=op.f("pk_step_metric")),
        sqlite_with_rowid=False,
    )


def _worker_group() -> None:
    op.create_table(
        "worker_group",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("pool_id", sa.Integer(), nullable=False),
        sa.Column("worker_class", sa.String(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("created_ns", sa.Integer(), nullable=False),
        sa.Column("closed_ns", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["pool_id"], ["pool.id"], name=op.f("fk_worker_group_pool_id_pool")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker_group")),
        sa.UniqueConstraint("name", name=op.f("uq_worker_group_name")),
    )


def _lane() -> None:
    op.create_table(
        "lane",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("n_calls", sa.Integer(), nullable=False),
        sa.Column("busy_ns", sa.Integer(), nullable=False),
        sa.Column("lost_ns", sa.Integer(), nullable=False),
        sa.Column("n_slowest", sa.Integer(), nullable=False),
        sa.Column("longest_ns", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["worker_group.id"], name=op.f("fk_lane_group_id_worker_group")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lane")),
        sa.UniqueConstraint("group_id", "rank", name=op.f("uq_lane_group_id_rank")),
    )


def _method() -> None:
    op.create_table(
        "method",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("dispatch_mode_id", sa.Integer(), nullable=False),
        sa.Column("execute_mode_id", sa.Integer(), nullable=False),
        sa.Column("blocking", sa.Boolean(), nullable=False),
        sa.Column("n_calls", sa.Integer(), nullable=False),
        sa.Column("n_failed", sa.Integer(), nullable=False),
        sa.Column("total_ns", sa.Integer(), nullable=False),
        sa.Column("longest_ns", sa.Integer(), nullable=False),
        sa.Column("gate_ns", sa.Integer(), nullable=False),
        sa.Column("dispatch_ns", sa.Integer(), nullable=False),
        sa.Column("execute_ns", sa.Integer(), nullable=False),
        sa.Column("wait_ns", sa.Integer(), nullable=False),
        sa.Column("collect_ns", sa.Integer(), nullable=False),
        sa.Column("unpad_ns", sa.Integer(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("padding_rows", sa.Integer(), nullable=False),
        sa.Column("bytes_out", sa.Integer(), nullable=False),
        sa.Column("bytes_in", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["dispatch_mode_id"], ["word.id"], name=op.f("fk_method_dispatch_mode_id_word")),
        sa.ForeignKeyConstraint(["execute_mode_id"], ["word.id"], name=op.f("fk_method_execute_mode_id_word")),
        sa.ForeignKeyConstraint(["group_id"], ["worker_group.id"], name=op.f("fk_method_group_id_worker_group")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_method")),
        sa.UniqueConstraint("group_id", "name", name=op.f("uq_method_group_id_name")),
    )


def _worker() -> None:
    op.create_table(
        "worker",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("lane_id", sa.Integer(), nullable=False),
        sa.Column("pool_id", sa.Integer(), nullable=False),
        sa.Column("local_rank", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("actor_id", sa.String(), nullable=False),
        sa.Column("devices", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("started_ns", sa.Integer(), nullable=False),
        sa.Column("ended_ns", sa.Integer(), nullable=True),
        sa.Column("reason", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["lane_id"], ["lane.id"], name=op.f("fk_worker_lane_id_lane")),
        sa.ForeignKeyConstraint(["pool_id"], ["pool.id"], name=op.f("fk_worker_pool_id_pool")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker")),
    )
    op.create_index(op.f("ix_worker_lane_id"), "worker", ["lane_id"], unique=False)
