"""The keys of a run's configuration: a frozen dataclass for each group of ``conf``, which checks its values.

:class:`simulations.config.RunConfig` holds them all, and :func:`~simulations.keys.schema.build` makes it from
what Hydra composes.
"""
