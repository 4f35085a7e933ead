"""The configuration that a driver shows, and the commit that its script is of. Older runs have neither."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the column."""
    op.create_table(
        "config_value",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_config_value")),
        sqlite_with_rowid=False,
    )
    op.add_column("run", sa.Column("git", sa.String(), server_default=sa.text("''"), nullable=False))


def downgrade() -> None:
    """Refuse: a run's file is only ever moved forward."""
    raise NotImplementedError("a run's file is never moved back; open it with the Podium that wrote it")
