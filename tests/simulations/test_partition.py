"""Parts that are dealt without flwr-datasets are those that it deals."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets.partitioner import IidPartitioner

from simulations.runner.config import PartitionConfig
from simulations.tasks.data import Examples
from simulations.tasks.partition import partition_examples


@pytest.mark.parametrize(("count", "num_clients"), [(20, 20), (53, 7), (100, 9)])
def test_iid_parts_are_those_of_flwr_datasets(count: int, num_clients: int) -> None:
    x, y = np.zeros((count, 2)), np.arange(count) % 3
    order = np.random.default_rng([5, 1]).permutation(count)
    partitioner = IidPartitioner(num_clients)
    partitioner.dataset = Dataset.from_dict({"index": order})
    parts = partition_examples(Examples(x, y, x, y), num_clients, PartitionConfig("iid"), seed=5)
    assert len(parts) == num_clients
    for client, part in enumerate(parts):
        assert part.tolist() == sorted(partitioner.load_partition(client)["index"])
