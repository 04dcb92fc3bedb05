"""What is over, laid out anew for searches: nodes with the end of what was there, and indexes that hold every filter.

Until a later migration changes them, both tables are what ``schema`` says; that migration brings the present statements over to
this file. Rows of before are kept; a database from before 0003 has none.
"""

import sqlalchemy as sa
from alembic import op

from keepstep.adapters.database.schema import finished, finished_nodes

revision = "0004"
down_revision = "0003"

_COLUMNS = "what, id, ended_s, words, job, tenant, state, cause, kind"


def upgrade() -> None:
    connection = op.get_bind()
    there = sa.inspect(connection).has_table(finished.name)
    if there:
        op.execute(f"CREATE TEMPORARY TABLE kept AS SELECT {_COLUMNS} FROM finished")
        op.execute("CREATE TEMPORARY TABLE kept_nodes AS SELECT what, node, id FROM finished_nodes")
        op.execute("CREATE INDEX kept_id ON kept (what, id)")
        op.execute("DROP TABLE finished")
        op.execute("DROP TABLE finished_nodes")
    finished.metadata.create_all(connection, tables=[finished, finished_nodes], checkfirst=False)
    if there:
        op.execute(f"INSERT INTO finished ({_COLUMNS}) SELECT {_COLUMNS} FROM kept")
        op.execute(
            "INSERT INTO finished_nodes (what, node, ended_s, id) SELECT n.what, n.node, k.ended_s, n.id "
            "FROM kept_nodes n JOIN kept k ON k.what = n.what AND k.id = n.id"
        )
        op.execute("DROP TABLE kept")
        op.execute("DROP TABLE kept_nodes")
