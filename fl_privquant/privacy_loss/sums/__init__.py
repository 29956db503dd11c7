"""Privacy losses of sums over clients."""
