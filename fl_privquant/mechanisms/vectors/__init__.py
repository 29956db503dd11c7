"""Mechanisms that encode a whole vector at once."""
