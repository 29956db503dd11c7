"""Quantizers without privacy, for comparison."""
