"""The operations, a file or a folder each: float64 reference, torch custom operations, variants.

Importing this package registers every operation and variant in it; those of other libraries come last.
"""

from importlib import import_module
from pathlib import Path

_home = Path(__file__).parent
_files = [path.relative_to(_home).with_suffix("") for path in _home.rglob("[!_]*.py")]
for _file in sorted(_files, key=lambda file: (file.name if file.name.startswith("peer_") else "", file.parts)):
    import_module(".".join((__name__, *_file.parts)))
