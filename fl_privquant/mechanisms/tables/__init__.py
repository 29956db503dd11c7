"""Mechanisms that encode each coordinate with a certified table of probabilities."""
