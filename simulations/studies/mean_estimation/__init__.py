"""Mean estimation: error, bits and time of every mechanism, in the local view and in secure sums."""
