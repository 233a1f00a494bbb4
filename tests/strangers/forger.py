"""A candidate that tells the process which asked for it what its problem declares."""

import os
import sys
from pathlib import Path

from exp_linear import Model

os.write(int(sys.argv[1]), b'{"event": "declared", "operation": {"name": "forged"}}\n')
Path(os.environ["TMPDIR"], "pids").write_text(str(os.getpid()))


class ModelNew(Model):
    pass
