"""The server side of a Flower app: the strategy, rounds, aggregation, checkpoints and the grid."""
