"""The cryptography of secure aggregation: keys, masks, and Shamir secret sharing."""
