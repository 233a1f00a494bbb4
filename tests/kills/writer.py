"""Forks a writer of records again and again, kills it amid one of its writes, and looks at what it left.

``writer.py ROOT KILLS LINES SEED``, ``LINES`` a run line and a cell line; prints how many records were finished.
"""

import itertools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from hypatia_lab import records

root, kills, (run, cell) = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
chance = random.Random(int(sys.argv[4]))


def write_for_ever(first: int, tell: int) -> None:
    os.write(tell, b"begun\n")
    for number in itertools.count(first):
        cells = [cell | {"seed": number, "variant": f"v{place}"} for place in range(1 + number % 20)]
        records.write(root, run | {"experiment": f"e{number}"}, cells, overwrite=True)
        records.write(root, run | {"experiment": "latest"}, cells, overwrite=True)
        os.write(tell, b"%d\n" % number)


records.write(root, run | {"experiment": "first"}, [cell])  # compiles the schema once, for every fork
number = 0
for _ in range(kills):
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        write_for_ever(number, tell)
    os.close(tell)
    with os.fdopen(hear, "rb") as stream:
        # At a random moment of one of the next writes, however busy the machine is.
        said = [stream.readline() for _ in range(chance.randint(1, 4))]
        time.sleep(chance.uniform(0, 0.006))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said += stream.read().splitlines()
    number = max([number, *(int(word) + 1 for word in said[1:])])
    if number:  # the last one may have been replaced before the news of it was out
        (latest,) = records.load(root, experiments=["latest"])
        assert latest.cells[0]["seed"] in (number - 1, number), (latest.cells[0]["seed"], number)
finished = {record.experiment: record.cells[0]["seed"] for record in records.load(root)}
assert all(finished[f"e{n}"] == n for n in range(number)), "a finished record is missing"
print(number)
