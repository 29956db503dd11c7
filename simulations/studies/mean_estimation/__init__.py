"""Mean estimation: error, bits and time of every mechanism, in the local view and in secure sums."""

from simulations.studies.mean_estimation import local, ranked_rounding, secure

PARTS = (*local.PARTS, *ranked_rounding.PARTS, *secure.PARTS)
