"""Which clients mask their codes with which: the graph of neighbors, its parameters, and the roster."""
