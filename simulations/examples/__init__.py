"""Flower apps to copy: ordinary ones, with PrivQuant in one line of the client and one of the server."""
