"""Exact errors of mechanisms in the secure sum, each at its own best, over that of a central Gaussian."""
