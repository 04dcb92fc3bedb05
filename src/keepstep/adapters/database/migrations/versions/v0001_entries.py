"""The journal: entries in a chain."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    op.create_table(
        "entries",
        sa.Column("seq", sa.Integer() if sqlite else sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.REAL() if sqlite else sa.Double(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("prev", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
    )
