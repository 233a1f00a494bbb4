"""Stands in for what somebody has published: does what its arguments say, and prints a figure."""

import contextlib
import ctypes
import os
import sys
import time
from pathlib import Path

PLACES = ["HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"]


def append(path):
    with open(path, "a") as file:
        file.write("x")


name, *given = [*sys.argv[1:], ""]
if name == "writes":
    append(given[0])
if name == "ignores":
    with contextlib.suppress(OSError):
        append(given[0])
if name == "hangs":
    os.system("sleep 600 & setsid sleep 600 &")
    print("pids", os.getpid(), flush=True)
    time.sleep(600)
if name == "leaves":
    os.system("setsid sleep 600 &")
    os.makedirs("locked/in")
    os.chmod("locked", 0)
if name == "dies":
    sys.exit("cannot go on")
if name == "segfaults":
    print("so far so good", flush=True)
    ctypes.string_at(0)
print("empty:", not os.listdir("."), "stdin:", repr(sys.stdin.read()))
print("within:", all(os.environ[place].startswith(os.path.dirname(os.getcwd())) for place in PLACES))
Path("answer.txt").write_text("42")
print("Fused:   1,234.5 ms/iter", file=sys.stderr)
