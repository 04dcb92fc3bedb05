"""Metrics of an exporter on this node (dcgm-exporter and the like), as a source of signals."""
