"""Benchmarks. Each prints ratios against a peer or a physical limit of the same run."""
