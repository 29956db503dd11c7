"""The registered mechanisms."""
