"""Prometheus and OpenMetrics: the page of figures that a scraper reads."""
