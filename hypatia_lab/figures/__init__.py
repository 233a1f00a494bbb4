"""The figures: one visual language, and a module for each kind of question."""

from hypatia_lab.figures.display import show

__all__ = ["show"]
