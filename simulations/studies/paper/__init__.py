"""The experiments of the paper, each table and figure of it, and checks of its text."""
