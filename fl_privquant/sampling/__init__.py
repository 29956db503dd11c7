"""Randomness, and the encoders: all code that draws random codes."""
