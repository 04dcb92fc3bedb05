"""Runs migrations on the connection, and in the transaction, of whoever asks."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
