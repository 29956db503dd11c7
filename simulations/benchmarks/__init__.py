"""Benchmarks: each one returns ratios against a baseline that is measured in the same process."""
