"""Tries what a confined process may not: ``confined.py FOLDER PID PORT`` prints what became of each, as JSON."""

import json
import os
import socket
import sys
from pathlib import Path

from hypatia_lab.judged.confine import confine

confine(Path("scratch"), Path("caches"))
found = {}
for name, work in {
    "own": lambda: Path(os.environ["TMPDIR"], "x").write_text("x"),
    "other": lambda: Path(sys.argv[1], "x").write_text("x"),
    "signal": lambda: os.kill(int(sys.argv[2]), 0),
    "network": lambda: socket.create_connection(("127.0.0.1", int(sys.argv[3])), timeout=5).close(),
}.items():
    try:
        work()
        found[name] = "allowed"
    except OSError as cause:
        found[name] = type(cause).__name__
print(json.dumps(found))
