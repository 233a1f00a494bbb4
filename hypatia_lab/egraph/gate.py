"""The gate: no rule without a test. Both sides are evaluated in float64 on random tensors, and a grade is granted.

Shapes are drawn at random, odd, broadcast, empty and zero-dimensional ones among them, and kept where the left side is
well typed and the rule's conditions hold; there the right side must be well typed and computable too. Values are
normal numbers, or finite edge values (signed zeros, denormals, 10^±30, 10^200), or infinities and NaN among numbers.
What the grades mean stands in :mod:`rules`. Fuzzing refutes; it proves nothing: a grade is the strongest claim that
so many trials did not refute.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from hypatia_lab.egraph.rules import Grade, Rule
from hypatia_lab.egraph.terms import OPERATORS, REFUSALS, Expression, IllTyped, Operator, parse

UNIT = 2.0**-53
"""Unit roundoff of float64."""

SMALL = (0.0, -0.0, 5e-324, -5e-324, 1e-310, -1e-310, 1e-30, -1.0, 1.0, 3.0)
LARGE = (0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e200, -1e200)
NOT_FINITE = (float("inf"), float("-inf"), float("nan"), 0.0, -0.0)
"""Edge values. Denormals and large numbers never meet: underflow on one side only could be an error of any size."""

Ranks = tuple[int | None, ...]

MAYBE: Ranks = (1, 1, 1, 1, None)
"""Of a vector that may be absent, as it then is every fifth time."""

RANKS: dict[str, tuple[Ranks, ...]] = {
    "Linear": ((1, 2, 3), (2,), MAYBE),
    "LinearRelu": ((1, 2, 3), (2,), MAYBE),
    "Mlp2": ((1, 2, 3), (2,), (1,), (2,), (1,)),
    "Mm": ((2,), (2,)),
    "Addmm": ((0, 1, 2), (2,), (2,)),
    "Transpose": ((1, 2, 3),),
    "Conv2d": ((4,), (4,), MAYBE),
    "BatchNorm": ((2, 3, 4), MAYBE, MAYBE, (1,), (1,)),
    "InstanceNorm": ((3, 4), (1,), (1,)),
}
"""Operator → ranks worth trying for its tensors; any other operator's tensors have rank 0 to 3."""


@dataclass(frozen=True)
class Verdict:
    """The gate's answer: the ``grade`` granted, or None and a ``counterexample`` in words; how many ``trials`` ran.

    With a grade weaker than EXACT, ``counterexample`` says what stood against the stronger ones.
    """

    grade: Grade | None
    counterexample: str
    trials: int


@dataclass
class _Trial:
    """One drawing: the tensor variables, and the values of the attribute variables once they were met."""

    rng: random.Random
    operators: Mapping[str, Operator]
    tensors: Mapping[str, torch.Tensor | None]
    attributes: dict[str, Any]
    roundings: int = 0
    """Those on the way to the values that were asked for."""
    added: bool = False
    """Whether signs are left out, so that on absolute values every sum is one over absolute values."""

    def value(self, expression: Expression) -> Any:
        """What an expression is. Raises one of :data:`terms.REFUSALS` where it is nothing."""
        if not isinstance(expression, tuple):
            if not isinstance(expression, str):
                return expression
            return self.tensors[expression] if expression in self.tensors else self.attributes[expression]
        if expression[0] == "Absent":
            return None
        operator = self.operators[str(expression[0])]
        values: list[Any] = []
        for position, (sort, argument) in enumerate(zip(operator.sorts, expression[1:], strict=True)):
            if sort != "T" and isinstance(argument, str) and argument not in self.attributes:
                self.attributes[argument] = self._draw(operator.name, sort, position, values)
            values.append(self.value(argument))
        for position in operator.subtracts if self.added else ():
            values[position] = -values[position]
        result = operator.evaluate(*values)
        self.roundings += operator.roundings + operator.summands(*values)
        return result.abs() if self.added else result

    def _draw(self, operator: str, sort: str, position: int, found: list[Any]) -> Any:
        rng = self.rng
        if sort == "bool":
            return rng.random() < 0.5
        if sort == "String":
            return rng.choice(("none", "tanh"))
        if sort == "f64":
            return 0.5 if operator == "Dropout" else 1e-5
        if sort == "i64":
            rank = found[0].dim()
            if rank < 2:
                raise IllTyped("no two dimensions")
            return rng.randrange(rank - 1) if position == 1 else rng.randrange(found[1] + 1, rank)
        if operator == "Conv2d":
            return (rng.choice((1, 2)), rng.choice((1, 2)), rng.choice((0, 1)), rng.choice((0, 1)), 1, 1, 1)
        return _reshaped(rng, found[0])

    def holds(self, condition: Expression) -> bool:
        """Whether a condition holds here. A list or size that does not exist makes it false, as in egglog."""
        assert isinstance(condition, tuple)
        try:
            left, right = (self._integer(side) for side in condition[1:])
        except IndexError:
            return False
        return left > right if condition[0] == ">" else left == right

    def _integer(self, expression: Expression) -> Any:
        if not isinstance(expression, tuple):
            return self.attributes[expression] if isinstance(expression, str) else expression
        if expression[0] == "dims":
            tensor = self.value(expression[1])
            if tensor is None:
                raise IndexError("what is absent has no sizes")
            return tuple(tensor.shape)
        if expression[0] not in FUNCTIONS:
            raise ValueError(f"conditions know no {expression[0]}")
        return FUNCTIONS[str(expression[0])](*map(self._integer, expression[1:]))


def _get(sizes: tuple[int, ...], index: int) -> int:
    if index < 0:
        raise IndexError("before the first")
    return sizes[index]


FUNCTIONS: dict[str, Callable[..., Any]] = {"vec-length": len, "vec-get": _get, "-": lambda a, b: a - b}
"""What a condition may compute, by egglog's names."""


def _reshaped(rng: random.Random, x: torch.Tensor) -> tuple[int, ...]:
    way = rng.randrange(3)
    if way == 0:
        return tuple(x.shape)
    last = x.shape[-1] if x.dim() and x.shape[-1] else 1
    rows = x.numel() // last
    divisors = [n for n in range(1, rows + 1) if rows % n == 0] or [1]
    first = rng.choice(divisors)
    if way == 1:
        return (first, rows // first, last) if rng.random() < 0.5 else (rows, last)
    return (last, rows) if rng.random() < 0.5 else (x.numel(),)


def _variables(left: Expression, operators: Mapping[str, Operator]) -> dict[str, Ranks]:
    """Tensor variables of the left side, and the ranks worth trying for each."""
    found: dict[str, Ranks] = {}
    if not isinstance(left, tuple) or left[0] == "Absent":
        return found
    own = operators[str(left[0])]
    tensors = own.tensors(left[1:])
    for ranks, argument in zip(RANKS.get(own.name, ((0, 1, 2, 3),) * len(tensors)), tensors, strict=True):
        found = ({argument: ranks} if isinstance(argument, str) else _variables(argument, operators)) | found
    return found


def _hollow(rng: random.Random, variables: Mapping[str, Ranks]) -> dict[str, torch.Tensor | None]:
    """Tensors of random shapes, not filled yet."""
    # Few different sizes a trial: tensors drawn independently then fit together often enough.
    sizes = rng.choice(([1], [2], [3], [5], [0], [1, 3], [2, 3], [3, 4], [0, 2], [0, 3], [1, 2, 5]))
    tensors: dict[str, torch.Tensor | None] = {}
    for name, ranks in variables.items():
        rank = rng.choice(ranks)
        shape = [rng.choice(sizes) for _ in range(rank or 0)]
        tensors[name] = None if rank is None else torch.empty(shape, dtype=torch.float64)
    return tensors


def _fill(rng: random.Random, generator: torch.Generator, tensor: torch.Tensor, edges: tuple[float, ...]) -> None:
    tensor.normal_(generator=generator)
    if edges and rng.random() < 0.8:
        choice = torch.tensor(edges, dtype=torch.float64)[torch.randint(len(edges), tensor.shape, generator=generator)]
        share = rng.choice((0.1, 0.5, 1.0))
        tensor.copy_(torch.where(torch.rand(tensor.shape, generator=generator) < share, choice, tensor))


def _equal_bits(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return ((left == right) & (left.signbit() == right.signbit())) | (left.isnan() & right.isnan())


def examine(
    rule: Rule, *, operators: Mapping[str, Operator] | None = None, trials: int = 400, seed: int = 0
) -> Verdict:
    """Fuzz one rule on the CPU with ``trials`` well-typed drawings; ``operators`` adds to those of the terms.

    Raises ``ValueError`` for a rule that cannot be read, ``KeyError`` for an unknown operator.
    """
    known = OPERATORS | dict(operators or {})
    left, right = parse(rule.left), parse(rule.right)
    conditions = [parse(condition) for condition in rule.when]
    variables = _variables(left, known)
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    grade, against, done = Grade.EXACT, "", 0
    for _ in range(200 * trials):
        if done == trials:
            return Verdict(grade, against, done)
        trial = _Trial(rng, known, _hollow(rng, variables), {})
        try:
            trial.value(left)
        except REFUSALS:
            continue
        if not all(trial.holds(condition) for condition in conditions):
            continue
        done += 1
        edges = ((), SMALL, LARGE, NOT_FINITE)[done % 4]
        for tensor in trial.tensors.values():
            if tensor is not None:
                _fill(rng, generator, tensor, edges)
        weaker, reason = _compare(trial, left, right, edges)
        if weaker is None:
            return Verdict(None, reason, done)
        if weaker > grade:
            grade, against = weaker, reason
    return Verdict(None, f"only {done} of {trials} drawings are well typed: not tested", done)


def _compare(trial: _Trial, left: Expression, right: Expression, edges: tuple[float, ...]) -> tuple[Grade | None, str]:
    """The strongest grade this drawing leaves open, and what stands against a stronger one."""
    trial.roundings = 0
    a = trial.value(left)
    try:
        b = trial.value(right)
    except REFUSALS as error:
        return None, f"the right side cannot be computed ({str(error).splitlines()[0]}) for {_told(trial)}"
    where, n = _told(trial), 2 * trial.roundings
    if a.shape != b.shape or a.dtype != b.dtype:
        return None, f"{tuple(a.shape)} against {tuple(b.shape)} for {where}"
    same = _equal_bits(a, b)
    if bool(same.all()):
        return Grade.EXACT, ""
    sizes = {name: None if t is None else t.abs() for name, t in trial.tensors.items()}
    absolute = replace(trial, tensors=sizes, added=True)
    # Products in another order overflow elsewhere: what overflows on either side, of large numbers, is not compared.
    magnitude = torch.maximum(absolute.value(left), absolute.value(right))
    bound = n * (UNIT * magnitude + (1e-300 if n else 0.0))
    comparable = a.isfinite() & b.isfinite() & magnitude.isfinite()
    wrong = comparable & ((a - b).abs() > bound)
    if bool(wrong.any()):
        return None, _at(wrong, a, b, where)
    apart = a.isfinite() != b.isfinite()
    if edges is LARGE:
        apart &= magnitude.isfinite()
    if bool(apart.any()):
        return (Grade.FINITE if edges is NOT_FINITE else None), _at(apart, a, b, where)
    # Rounding within the bound, zeros of another sign, or NaN for an infinity.
    return Grade.REAL, _at(~same, a, b, where)


def _at(mask: torch.Tensor, a: torch.Tensor, b: torch.Tensor, where: str) -> str:
    index = tuple(mask.nonzero()[0].tolist())
    return f"{a[index].item()!r} against {b[index].item()!r} at {index} for {where}"


def _told(trial: _Trial) -> str:
    def told(tensor: torch.Tensor | None) -> str:
        if tensor is None:
            return "absent"
        return repr(tensor.tolist()) if tensor.numel() <= 6 else f"{tuple(tensor.shape)}"

    parts = [f"{name} = {told(tensor)}" for name, tensor in trial.tensors.items()]
    return ", ".join(parts + [f"{name} = {value!r}" for name, value in trial.attributes.items()])


def admit(rules: tuple[Rule, ...]) -> None:
    """Raise ``ValueError`` naming the rules that earn less than they claim, with the counterexamples."""
    faults = []
    for rule in rules:
        verdict = examine(rule)
        if verdict.grade is None or verdict.grade > rule.grade:
            earned = "refused" if verdict.grade is None else f"only {verdict.grade.name}"
            faults.append(f"{rule.name} claims {rule.grade.name}, {earned}: {verdict.counterexample}")
    if faults:
        raise ValueError("; ".join(faults))
