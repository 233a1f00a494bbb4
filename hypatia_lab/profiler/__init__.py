"""Where program files that are recorded by their digest find what they import; see :mod:`hypatia_lab.probes`."""
