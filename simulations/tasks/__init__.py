"""What simulations train: data sets, their partition among clients, and models."""
