"""How often in a row a rank was the slowest.

It cannot be told of an older run without comparing all its spans again, so its ranks have none.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ZERO = sa.text("0")


def upgrade() -> None:
    """Add the columns."""
    for name in ("streak", "streak_from_ns", "longest_streak", "longest_streak_from_ns"):
        op.add_column("lane", sa.Column(name, sa.Integer(), server_default=_ZERO, nullable=False))


def downgrade() -> None:
    """Refuse: a run's file is only ever moved forward."""
    raise NotImplementedError("a run's file is never moved back; open it with the Podium that wrote it")
