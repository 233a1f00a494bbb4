"""See :mod:`hypatia_lab.probes.probe`."""

from hypatia_lab.probes.probe import Ended as Ended
