"""How encoded updates are written as bytes: packed integers, and the wire formats of mechanisms."""
