"""What the whole run may cost a patient, and the plan that keeps to it; server and clients import both."""

from __future__ import annotations

import fl_privquant as pq

target = pq.Target(
    epsilon=2.0, delta=1e-5, unit="record", rounds=10, num_clients=5, records=455, sampling_rate=0.5
)
plan = target.plan(dimension=31, l2_clip=1.0)  # 30 features and an intercept; largest gradient of a patient
