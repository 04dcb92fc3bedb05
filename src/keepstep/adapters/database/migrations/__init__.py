"""Alembic's scripts: how an older database becomes one of today. Run by ``migrate``, never by hand."""
