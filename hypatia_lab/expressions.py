"""Arithmetic that somebody else's file writes as text: numbers, names and signs are worked out, and nothing else is."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Collection, Mapping
from typing import Any

SIGNS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub, ast.UAdd)
_ALLOWED = (ast.Expr, ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp)
_UNREADABLE = (SyntaxError, RecursionError, MemoryError, Warning)
"""What Python's parser may make of text that is no expression."""


def value(expression: str, names: Mapping[str, float], signs: Collection[type[ast.AST]] = SIGNS) -> Any:
    """The int or float that ``expression`` gives, of numbers, ``names``, ``signs`` (as Python's parser calls them) and
    parentheses. Raises ``ValueError`` with the cause for anything else, and for a result that is no finite number.
    """
    import simpleeval

    operators = {sign: simpleeval.DEFAULT_OPERATORS[sign] for sign in signs}
    evaluator = simpleeval.SimpleEval(operators=operators, functions={}, names=dict(names))
    evaluator.nodes = {node: handle for node, handle in (evaluator.nodes or {}).items() if node in _ALLOWED}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Python's parser warns about text such as "1if": refuse it
            found = evaluator.eval(expression)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise ValueError(f"it gives {found!r}, not a finite number")
        return found
    except (simpleeval.InvalidExpression, ArithmeticError, ValueError, TypeError, *_UNREADABLE) as cause:
        raise ValueError(" ".join(str(cause).split())) from None
