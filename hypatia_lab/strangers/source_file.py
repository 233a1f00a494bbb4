"""A reader's Python file: its digest, running it as a module, and what is said of one that fails.

Shared by :mod:`hypatia_lab.strangers.reader_kernel` (a kernel of the reader's), :mod:`hypatia_lab.strangers` (a problem
from elsewhere, and its candidate) and :mod:`hypatia_lab.strangers.programs` (a program from outside). Each raises an
``error`` of its own, whose message begins with file and line.
"""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypatia_lab import files


def digest(path: Path, error: type[ValueError]) -> str:
    """Digest of the file's text, 12 hexadecimal digits. Raises ``error`` when it cannot be read."""
    return hashlib.sha256(files.content(path, error)).hexdigest()[:12]


def run(path: Path, error: type[ValueError]) -> types.ModuleType:
    """Run the file as a module, and return that. Its folder can be imported from, and no bytecode is left there.

    Raises ``error`` naming file and line when it cannot be read or fails.
    """
    text = files.content(path, error)
    try:
        code = compile(text, str(path), "exec")
    except SyntaxError as cause:
        raise error(f"{path}:{cause.lineno or 1}: {type(cause).__name__}: {cause.msg}") from None
    except ValueError as cause:  # a null byte
        raise error(f"{path}:1: {cause}") from None
    module = types.ModuleType(f"own_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where inspect and torch look for the source of a kernel
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # what is installed comes first
    try:
        exec(code, module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as cause:  # SystemExit too: a script that ends itself declares nothing
        raise error(f"{path}{said(cause, path)}") from None
    finally:
        sys.dont_write_bytecode = before
    return module


@contextmanager
def telling(error: type[ValueError], what: str, path: Path | None = None) -> Iterator[None]:
    """Whatever the body raises becomes an ``error``: ``what``, then what :func:`said` says of it."""
    try:
        yield
    except Exception as cause:
        raise error(f"{what}{said(cause, path)}") from None


def said(cause: BaseException, path: Path | None = None) -> str:
    """Where in the reader's file ``cause`` arose (the last line of it that was running), and what it says."""
    frames = traceback.extract_tb(cause.__traceback__)
    there = [frame.lineno for frame in frames if path is not None and frame.filename == str(path)]
    line = f":{there[-1]}" if there else ""
    message = (str(cause).strip() or "no message").splitlines()[0]
    own = type(cause).__module__.startswith("hypatia_lab") or (
        isinstance(cause, ValueError) and frames and Path(frames[-1].filename).is_relative_to(Path(__file__).parents[1])
    )
    return f"{line}: {message}" if own else f"{line}: {type(cause).__name__}: {message[:200]}"
