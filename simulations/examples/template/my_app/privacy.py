"""What a client's whole run may cost, and the plan that keeps to it; server and clients import both."""

from __future__ import annotations

import fl_privquant as pq
from my_app.task import initial_model

target = pq.Target(epsilon=8.0, delta=1e-5, rounds=5, num_clients=20)
dimension = sum(array.size for array in initial_model().values())
plan = target.plan(dimension, l2_clip=1.0)
