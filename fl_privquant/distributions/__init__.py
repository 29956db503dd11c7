"""Mechanisms as data: output distributions, codebooks, certified tables, lattices and input densities."""
