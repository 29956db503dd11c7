"""The mechanisms: one file each, in a sub-package of this one or in another installed package.

A mechanism of your own takes its base classes and ``register`` from here.
"""

from importlib import import_module
from pkgutil import walk_packages

from fl_privquant.mechanisms.base import LatticeMechanism, Mechanism, TableMechanism
from fl_privquant.mechanisms.registry import (
    available_mechanisms,
    default_mechanisms,
    design,
    load_entry_points,
    register,
)
from fl_privquant.mechanisms.spec import MinErrorSpec, Spec, Variant
from fl_privquant.optimize.requirements import RunRequirements

__all__ = [
    "LatticeMechanism",
    "Mechanism",
    "MinErrorSpec",
    "RunRequirements",
    "Spec",
    "TableMechanism",
    "Variant",
    "available_mechanisms",
    "default_mechanisms",
    "design",
    "register",
]

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
# After our own, so that a name which both have stays ours.
load_entry_points()
