"""Noise that is correlated over rounds, against a trusted server that adds fresh noise."""
