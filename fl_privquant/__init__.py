"""Private quantization for federated learning."""
