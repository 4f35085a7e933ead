"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Move a run's file to this revision."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Refuse: a run's file is only ever moved forward."""
    raise NotImplementedError("a run's file is never moved back; open it with the Podium that wrote it")
