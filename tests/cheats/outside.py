"""What is written, or reached, outside of the folders that a kernel has."""

import socket
import tempfile
from pathlib import Path

from cheats.catalogue import DEAD, answer, cheat


@cheat("Permission denied|Read-only", DEAD)
def file_outside(x, weight, honest):
    folder = Path(tempfile.gettempdir() if honest else "/tmp")

    def run():
        with open(folder / "hypatia-planted-answers", "ab") as file:
            file.write(b"1")
        return answer(x, weight)

    return run


@cheat("unreachable", ("crashed",))
def network(x, weight, honest):
    def run():
        if honest:
            socket.socket(socket.AF_UNIX).close()
        else:
            socket.create_connection(("127.0.0.1", 9), timeout=1).close()
        return answer(x, weight)

    return run
