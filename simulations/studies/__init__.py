"""Studies: questions, the tables that answer them, figures and one page each, all made by one command.

``python -m simulations.studies NAME`` computes what is missing of a study or of one of its parts, draws the
figures and writes the page. :mod:`~simulations.studies.study` says what a study is,
:mod:`~simulations.studies.sweep` turns experiments of ``conf/experiment`` into tables, and
:mod:`~simulations.studies.page` writes pages from templates. Each folder beside them is one study.
"""
