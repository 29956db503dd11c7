"""Simulations, studies and benchmarks on top of fl_privquant."""
