"""Privacy losses of added noise, in reals and in integers."""
