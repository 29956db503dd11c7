"""Randomness and the encode kernel: the only code that draws codes."""
