"""The book for plain Sphinx: what ``_config.yml`` and ``_toc.yml`` say, without Jupyter Book.

    python -m sphinx -b html -c sphinx . _build/sphinx/html

Those two files stay the only place where the book is configured. What stands here is what Jupyter Book makes of them.
"""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
_said = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
_own = _said["sphinx"]["config"]
globals().update(_own)  # they have Sphinx's own names

project = html_title = _said["title"]
author = _said["author"]
copyright = _said["copyright"]
extensions = [name for name in _own["extensions"] if name not in ("jupyter_book", "sphinx_comments")]
html_theme = "sphinx_book_theme"
html_sourcelink_suffix = ""
external_toc_path = str(ROOT / "_toc.yml")
external_toc_exclude_missing = _said["only_build_toc_files"]
exclude_patterns = _said["exclude_patterns"]
nb_execution_mode = _said["execute"]["execute_notebooks"]
nb_output_stderr = _said["execute"]["stderr_output"]
myst_url_schemes = ["mailto", "http", "https"]
suppress_warnings = ["myst.domains"]
# Paths there are the sources'; Sphinx takes them from beside this file.
html_static_path = [str(ROOT / path) for path in _own["html_static_path"]]
bibtex_bibfiles = [str(ROOT / path) for path in _own["bibtex_bibfiles"]]
