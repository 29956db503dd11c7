import pytest

import fl_privquant as pq


@pytest.fixture(scope="session")
def mechanism():
    return pq.design("optm", epsilon=2.0, bits=2)
