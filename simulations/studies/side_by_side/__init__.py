"""Mechanisms side by side in federated learning: slices through one setting, one thing varied at a time."""
