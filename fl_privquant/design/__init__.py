"""Linear programs that design mechanisms."""
