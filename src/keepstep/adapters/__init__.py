"""Adapters: one folder per outside system. A third-party client is imported in its adapter only."""
