"""Where program files that are recorded by their digest find it; see :mod:`hypatia_lab.kernels.compiled`."""

from hypatia_lab.kernels.compiled import compile_missing as compile_missing
