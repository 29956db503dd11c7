"""Mechanisms as data: output laws, codebooks, certified tables, lattices and input densities."""
