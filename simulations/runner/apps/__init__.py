"""Flower apps of users, run unchanged (``app=FOLDER``): found, imported, watched, and made private."""
