"""Writes a record, and then a larger one over it than a file may be; ``full_disk.py ROOT LINES``.

The kernel itself refuses to write on: RLIMIT_FSIZE stands in for a full disk, which takes root to make.
"""

import json
import resource
import sys
from pathlib import Path

from hypatia_lab import records

root, (run, cell) = Path(sys.argv[1]), json.loads(sys.argv[2])
records.write(root, run, [cell])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    records.write(root, run, [cell | {"variant": f"v{place}"} for place in range(100)], overwrite=True)
except records.RecordError as cause:
    print(cause)
