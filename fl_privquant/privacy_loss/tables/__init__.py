"""Privacy losses of one release of a certified table."""
