"""Optimal clips and lattices for sums over clients."""
