"""Ledgers: what a federation, and what each client, has spent so far."""
