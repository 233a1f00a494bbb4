"""See :mod:`hypatia_lab.probes.program`."""

from hypatia_lab.probes.program import Output as Output
from hypatia_lab.probes.program import Shell as Shell
