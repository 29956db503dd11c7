"""Privacy losses of output distributions, alone and in sums over clients, and their composition."""
