"""Mechanisms side by side in federated learning: slices through one setting, each an experiment in ``conf``.

``python -m simulations.federated`` runs them, writes their tables, draws the figures and the page.
"""
