"""What a mechanism is, as data: laws, codebooks, certified tables, lattices and input densities."""
