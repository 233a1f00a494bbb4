"""Planted faults: lists of one-place changes of the package that tests should catch, and :mod:`run`, which tries them.

63 of them have been seen caught so far. What ``run.py`` does not print as caught is to be replaced, or to get a test.
"""
