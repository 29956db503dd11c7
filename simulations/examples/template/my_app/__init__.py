"""Federated learning with private quantization."""
