"""Networks and non-IID clients: the data and models of the experiments larger_models."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import torch

from simulations.studies.larger_models.characters import gru, shakespeare
from simulations.studies.larger_models.images import assign_users, wide_cnn
from simulations.tasks.data import shakespeare as last_characters


def test_users_have_as_many_examples_and_few_labels() -> None:
    labels = np.repeat(np.arange(10), 300)
    users = assign_users(labels, 100, 0.1)
    assert (np.bincount(users) == 30).all()
    kinds = [len(np.unique(labels[users == user])) for user in range(100)]
    # With shares that are nearly equal, 30 examples have all ten labels but one or none.
    alike = assign_users(labels, 100, 1e6)
    assert np.mean(kinds) < 5.0
    assert np.mean([len(np.unique(labels[alike == user])) for user in range(100)]) > 9.0


def test_characters_are_learned_at_every_place_and_tested_at_the_last(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "roles.jsonl.gz", "wt") as file:
        for role in ("A", "B"):
            file.write(json.dumps({"role": role, "text": f"{role} to be or not to be, " * 9}) + "\n")
    every, last = (read(str(tmp_path), length=6, stride=3) for read in (shakespeare, last_characters))
    assert every.train_y.shape == every.train_x.shape
    assert (every.train_y[:, :-1] == every.train_x[:, 1:]).all()
    assert (every.train_y[:, -1] == last.train_y).all()
    cut = every.first(4, 3)
    assert cut.labeled
    assert cut.num_classes <= every.num_classes == last.num_classes
    assert (len(cut.train_y), len(cut.test_y)) == (4, 3)
    model = gru(every.num_classes, hidden=4, embedding=3)
    texts = torch.from_numpy(every.train_x[:5])
    places = model.train()(texts)
    assert places.shape == (5, every.num_classes, 6)
    assert torch.equal(model.eval()(texts), places[:, :, -1])


def test_the_network_for_images() -> None:
    model = wide_cnn((1, 14, 14), 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 102_450
    assert model(torch.zeros(2, 1, 14, 14)).shape == (2, 10)
