"""Federated learning in the local view: what can be learnt if the server sees every client's message."""
