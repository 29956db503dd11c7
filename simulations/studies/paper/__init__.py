"""The experiments of the paper, each table and figure of it, and checks of its text."""

from simulations.studies.paper import corrections, dpsgd, example_law, scalar, vector_error

PARTS = (*scalar.PARTS, *example_law.PARTS, *vector_error.PARTS, *dpsgd.PARTS, *corrections.PARTS)
