"""One simulated run: its configuration, the Flower app that it runs, and the results that it writes."""
