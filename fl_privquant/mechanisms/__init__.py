"""The mechanisms: one file each, in a sub-package of this one or in another installed package."""

from importlib import import_module
from pkgutil import walk_packages

from fl_privquant.mechanisms.registry import load_entry_points

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
# After our own, so that a name which both have stays ours.
load_entry_points()
