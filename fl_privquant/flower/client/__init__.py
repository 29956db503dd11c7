"""The client side of a Flower app: mods, the ledger of the client, and its identity."""
