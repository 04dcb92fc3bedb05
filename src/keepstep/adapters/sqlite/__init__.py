"""Adapters over SQLite."""
