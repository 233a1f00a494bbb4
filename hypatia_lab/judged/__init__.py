"""A stranger's kernel, measured by a process that never runs it.

:mod:`~hypatia_lab.judged.coordinator` is one fresh process of a measurement. It forks a *referee*, who draws inputs and
knows the answer, and a *worker* for each variant, who knows neither; the reader's file is run in those alone. They get
ready together, and so do the processes of a measurement where a machine has cores for them; from then on all but the
one whose turn it is are stopped. Whatever a worker says is held against what is seen from outside:

- Its times, against the coordinator's own clock around the same calls.
- Its outputs, of calls drawn by lot while they are timed, against the referee's answer to inputs that are new each
  time; and once to inputs that change amid its calls, without a pause.
- What a call takes on new inputs, against the same call once more on the same: whoever remembers is faster then. And
  what it takes alone against what it takes among others, beside the baseline's.
- Functions and modes of its process, against those before the file was run.
- What it goes on computing once its calls have returned, and threads that they leave behind.

It may write below folders of its own only and, where the system allows that, has no network. Whatever does not hold is
a status of its own, ``cheated``, with the numbers behind it in the record. See :mod:`~hypatia_lab.judged.evidence`.
"""

import gc
import sys

if sys.argv[0] == "-m":  # a fresh process that imports what it needs: a million objects, none of which is garbage
    gc.disable()
