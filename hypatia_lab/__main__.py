"""``python -m hypatia_lab``: the command where the package lies on the path without being installed."""

from __future__ import annotations

from hypatia_lab.cli.commands import main

main(prog_name="hypatia-lab")
