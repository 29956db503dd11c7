"""Policies: which encoding each round uses."""
