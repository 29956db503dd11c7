"""What a client's whole run may cost, and the plan that keeps to it; server and clients import both."""

from __future__ import annotations

import fl_privquant as pq

target = pq.Target(epsilon=8.0, delta=1e-5, rounds=10, num_clients=50)
plan = target.plan(dimension=650, l2_clip=1.0)  # model parameters; largest norm of an update
