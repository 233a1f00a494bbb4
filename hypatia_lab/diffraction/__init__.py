"""The diffraction simulator: scenes, physics, and everyone who computes them.

Importing this package registers its operations and variants.
"""

from hypatia_lab.diffraction import simulators  # noqa: F401  (registers)
from hypatia_lab.diffraction.scene import Beam, Crystal, Detector, Scene, SceneError, Spindle, seed_scene
from hypatia_lab.diffraction.simulate import SimulationError, simulate

__all__ = [
    "Beam",
    "Crystal",
    "Detector",
    "Scene",
    "SceneError",
    "SimulationError",
    "Spindle",
    "seed_scene",
    "simulate",
]
