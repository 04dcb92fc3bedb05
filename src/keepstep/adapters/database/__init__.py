"""Adapters over SQL databases: SQLite in a file, PostgreSQL by a URL. SQLAlchemy, Alembic and psycopg are known here only."""
