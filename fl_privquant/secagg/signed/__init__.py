"""Signatures and witnesses: what only a lying server makes necessary."""
