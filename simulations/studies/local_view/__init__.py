"""Federated learning in the local view: what can be learnt where every client's message is seen."""
