"""Who goes on computing when its calls have returned: to slow down others, or to keep clocks and caches up."""

import os
import subprocess
import sys
import threading
import time

from cheats.catalogue import GOES_ON, answer, cheat

LONG_S = 120


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@cheat(GOES_ON)
def busy_thread(x, weight, honest):
    thread = threading.Thread(target=answer if honest else spin, args=(x, weight) if honest else (LONG_S,), daemon=True)
    thread.start()
    if honest:
        thread.join()


@cheat(GOES_ON)
def busy_child(x, weight, honest):
    if not (child := os.fork()):
        spin(0 if honest else LONG_S)
        os._exit(0)
    if honest:
        os.waitpid(child, 0)


@cheat(GOES_ON)
def subprocess_that_works(x, weight, honest):
    loop = f"import time\nend = time.monotonic() + {0 if honest else LONG_S}\nwhile time.monotonic() < end: pass"
    child = subprocess.Popen([sys.executable, "-S", "-c", loop])
    if honest:
        child.wait()


@cheat(GOES_ON, acts="imported")
def import_slows_down_the_others(honest):
    """By a child that belongs to nobody, in a session of its own."""
    if not (child := os.fork()):
        os.setsid()
        if honest or not os.fork():
            spin(0 if honest else 20)
        os._exit(0)
    if honest:
        os.waitpid(child, 0)
