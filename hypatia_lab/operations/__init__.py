"""The operations, one file each: float64 reference, torch custom operations, variants.

Importing this package registers every operation and variant in it.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
