"""What every notebook uses, for its one line ``from hypatia_lab.pages.notebook import *``: nothing is defined here.

A chapter's own modules, and anything that one page alone needs, a notebook imports by name.
"""

# ruff: noqa: F401 (what it offers is what it imports)

import gc

import pandas
from IPython.core.display import Markdown
from IPython.display import display

from hypatia_lab import claims, drawings, figures, formats, results, tables
from hypatia_lab.figures import ceilings as ceiling_figures
from hypatia_lab.figures import comparisons, over_size
from hypatia_lab.figures import probes as probe_figures
from hypatia_lab.pages import by_machine, cards, readings, source
from hypatia_lab.pages.numbers import count, fixed, ratio, say, share, span, table, time
from hypatia_lab.tables import claims as claim_tables

gc.set_threshold(100_000)  # what a page reads stays: to look for cycles in it again and again takes a third of the time
