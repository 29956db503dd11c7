"""Studies: questions, the tables that answer them, figures and one page each, all made by one command.

``python -m simulations.studies NAME`` computes a study or one of its parts, draws the figures and writes the
page. Each folder is one study, with a module ``study.py``; :mod:`~simulations.studies._pages` says what that
has, and :mod:`~simulations.studies._sweeps` runs experiments of ``conf/experiment``.
"""
