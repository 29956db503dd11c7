"""What a client sends through a secure sum, and what that costs in error and in accuracy."""
