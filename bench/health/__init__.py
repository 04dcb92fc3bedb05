"""Fits and judges the health score: ``python -m bench.health fit`` and ``evaluate``."""
