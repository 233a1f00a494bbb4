"""Planted cheats, each with an honest twin; see :mod:`cheats.catalogue`."""
