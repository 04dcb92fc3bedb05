"""Which report of which session a fact came in: what lets a launcher's repeated report be told from a new one."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    op.add_column("entries", sa.Column("session", sa.Text() if sqlite else sa.Text(collation="C")))
    op.add_column("entries", sa.Column("number", sa.Integer() if sqlite else sa.BigInteger()))
    reported = sa.text("session IS NOT NULL")
    op.create_index(
        "entries_origin", "entries", ["session", "number"], sqlite_where=reported, postgresql_where=reported
    )
