"""Mechanisms at an equal budget for a client's whole run, seen through secure aggregation."""
