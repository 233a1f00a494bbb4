"""Kills whoever imports it."""

import ctypes

ctypes.string_at(0)
