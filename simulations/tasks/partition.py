"""Which client holds which examples: partitioners of flwr-datasets, seeded."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant.errors import InvalidSpecError
from simulations.runner.config import PartitionConfig
from simulations.tasks.data import Examples


def partition_examples(
    examples: Examples, num_clients: int, config: PartitionConfig, seed: int
) -> list[NDArray[np.int64]]:
    """For each client the indices of its examples."""
    labels = examples.train_y
    if num_clients > len(labels):
        raise InvalidSpecError(
            "federation.num_clients", num_clients, f"clients for {len(labels)} examples", "use fewer clients"
        )
    if config.name == "natural":
        return _partition_by_user(examples.users, num_clients, seed)
    if not examples.labeled:
        if config.name in ("dirichlet", "shards"):
            raise InvalidSpecError("partition", config.name, "deals by labels, which these data do not have")
        # The other partitions ignore labels, so that all examples may have the same.
        labels = np.zeros(len(labels), np.int64)
    order = np.random.default_rng([seed, 1]).permutation(labels.size)
    if config.name == "iid":
        # These are the parts of flwr-datasets' partitioner, which takes milliseconds for each client.
        return [np.sort(part) for part in np.array_split(order, num_clients)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyarrow and datasets disagree on deprecated options
        from datasets import Dataset

        partitioner = _make_partitioner(num_clients, config, seed)
        partitioner.dataset = Dataset.from_dict({"label": labels[order], "index": order})
        try:
            parts = [
                # Read as arrays: row by row, Arrow takes seconds for what is one slice.
                np.sort(partitioner.load_partition(client).with_format("numpy")["index"][:].astype(np.int64))
                for client in range(num_clients)
            ]
        except ValueError as error:
            raise InvalidSpecError(
                "partition", config.name, f": {error}", "use fewer clients or a larger alpha"
            ) from error
    empty = [client for client, part in enumerate(parts) if part.size == 0]
    if empty:
        raise InvalidSpecError(
            "partition",
            config.name,
            f": {len(empty)} of {num_clients} clients have no example (the first is {empty[0]})",
            "use fewer clients or a larger partition.alpha",
        )
    return parts


def _partition_by_user(
    users: NDArray[np.int64] | None, num_clients: int, seed: int
) -> list[NDArray[np.int64]]:
    """For each of ``num_clients`` users, who are drawn at random, the indices of their examples."""
    if users is None:
        raise InvalidSpecError(
            "partition", "natural", ", but the task's data do not say which user an example belongs to"
        )
    # After a stable sort, the examples of one user are adjacent and in order.
    order = np.argsort(users, kind="stable")
    names, starts = np.unique(users[order], return_index=True)
    if num_clients > len(names):
        raise InvalidSpecError(
            "federation.num_clients",
            num_clients,
            f"clients, but the data have {len(names)} users",
            "use fewer",
        )
    parts = np.split(order, starts[1:])
    chosen = np.random.default_rng([seed, 1]).permutation(len(names))[:num_clients]
    return [parts[user] for user in np.sort(chosen)]


def _make_partitioner(num_clients: int, config: PartitionConfig, seed: int) -> Any:
    from flwr_datasets import partitioner

    if config.name == "size_skew":
        return partitioner.LinearPartitioner(num_clients)
    if config.name == "shards":
        return partitioner.ShardPartitioner(
            num_clients, partition_by="label", num_shards_per_partition=config.shards_per_client, seed=seed
        )
    return partitioner.DirichletPartitioner(
        num_clients, partition_by="label", alpha=config.alpha, min_partition_size=1, seed=seed
    )
