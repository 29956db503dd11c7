"""The registered mechanisms: one file each, and the registry."""

from fl_privquant.mechanisms import erm, one_bit, optm, rqm

__all__ = ["erm", "one_bit", "optm", "rqm"]
