"""The patients: nothing here knows of federated learning or privacy."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

NUM_FEATURES = 30
_NUM_HOSPITALS = 5
_TEST_EVERY = 5

Patients = tuple[NDArray[np.float64], NDArray[np.int64]]


@lru_cache(maxsize=1)
def _load_all() -> Patients:
    """Features and whether the tumor is malignant.

    Features are scaled by the ranges in the data's public description: a mean or a maximum that a hospital
    computed from its patients would tell of them outside of what the plan counts.
    """
    # Here, as Flower imports this module anew for each message, and only one in four needs the patients.
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    ranges = re.findall(r"\):\s+([\d.]+)\s+([\d.]+)\s*$", data.DESCR, flags=re.MULTILINE)
    low, high = np.array(ranges, dtype=np.float64).T
    return 2.0 * (data.data - low) / (high - low) - 0.5, 1 - data.target


def load_patients(hospital: int) -> Patients:
    """The patients of one hospital."""
    features, malignant = _load_all()
    chosen = np.arange(len(malignant)) % _TEST_EVERY != 0
    return features[chosen][hospital::_NUM_HOSPITALS], malignant[chosen][hospital::_NUM_HOSPITALS]


def load_test_patients() -> Patients:
    """Patients to test with."""
    features, malignant = _load_all()
    return features[::_TEST_EVERY], malignant[::_TEST_EVERY]
