"""Composition: the loss of many releases, by loss distributions and by Rényi divergences."""
