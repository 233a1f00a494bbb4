"""Measuring: plans are composed, run in processes of their own, and recorded."""
