"""From model updates to integer payloads and back."""
