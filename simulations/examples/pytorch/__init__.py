"""A minimal PyTorch app that learns handwritten digits, with a target for the whole run and secure aggregation."""
