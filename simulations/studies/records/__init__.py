"""Ten silos, and privacy for each record: against DP-SGD in each silo, and against a trusted server."""
