"""A minimal PyTorch app: a small network that learns handwritten digits."""
