"""Mechanisms that add noise: rounded and discrete Gaussian, Skellam, Laplace, and floats."""
