"""Randomness, and the encoders: all code that draws codes."""
