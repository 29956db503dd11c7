"""The design of mechanisms: linear programs, searches for output values, and clips."""
