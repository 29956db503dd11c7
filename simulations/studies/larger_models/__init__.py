"""Networks on non-IID clients, at an equal budget for a client's whole run through a secure sum."""
