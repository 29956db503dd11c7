"""A small PyTorch app for handwritten digits: a target for the whole run, a plan, and secure aggregation."""
