"""Benchmarks: nearly all measurements are ratios against a baseline in the same process."""
