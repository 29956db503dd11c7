"""Privacy losses of output laws, alone and in sums over clients, and their composition."""
