"""What is written, or reached, outside of the folders that a kernel has."""

import socket
import tempfile
from pathlib import Path

from cheats.catalogue import DEAD, cheat


@cheat("Permission denied|Read-only", DEAD, acts="each")
def file_outside(x, weight, honest):
    folder = Path(tempfile.gettempdir() if honest else "/tmp")
    with open(folder / "hypatia-planted-answers", "ab") as file:
        file.write(b"1")


@cheat("unreachable", ("crashed",), acts="each")
def network(x, weight, honest):
    if honest:
        socket.socket(socket.AF_UNIX).close()
    else:
        socket.create_connection(("127.0.0.1", 9), timeout=1).close()
