"""The committed tables of the study of the paper."""

from __future__ import annotations

from functools import partial

from simulations.studies.__main__ import study_folder
from simulations.studies._pages import read_table

READ = partial(read_table, study_folder("paper"))
