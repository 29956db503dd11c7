"""What laws cost: loss distributions, their composition, blankets and sums, as pure functions of laws."""
