"""A process that follows a script: the plan's ``steps``, each a word and a value. Run by tests/test_sessions.py."""

import ctypes
import os
import subprocess
import sys
import threading
import time

from hypatia_lab.bench import sessions

plan, emit = sessions.child_plan()


def fork(seconds):
    if os.fork() == 0:
        time.sleep(seconds)
        os._exit(0)


def helper(seconds, **how):
    emit("helper", pid=subprocess.Popen(["sleep", str(seconds)], **how).pid)


def fail(message):
    raise RuntimeError(message)


WORDS = {
    "begin": lambda what: emit("begin", what=what),
    "tell": lambda value: emit("told", value=value, pid=os.getpid(), torch="torch" in sys.modules),
    "print": print,
    "half": lambda value: os.write(int(sys.argv[1]), b'{"event": "beg'),
    "say": lambda value: os.write(int(sys.argv[1]), value.encode() + b"\n"),
    "sleep": time.sleep,
    "exit": os._exit,
    "segfault": lambda value: ctypes.string_at(0),
    "helper": helper,
    "leave": lambda seconds: helper(seconds, start_new_session=True, close_fds=False),
    "fork": fork,
    "lab": lambda value: emit("lab", value=sessions.__file__),
    "thread": lambda seconds: threading.Thread(target=time.sleep, args=(seconds,)).start(),
    "close": lambda value: os.close(int(sys.argv[1])),
    "wait": lambda value: (emit("ready"), sessions.GO.wait()),
    "end": lambda value: emit("end"),
    "raise": fail,
}
for word, value in plan["steps"]:
    WORDS[word](value)
