"""Flower apps to copy: ordinary ones, with one line of PrivQuant on each side."""
