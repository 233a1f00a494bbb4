"""The rules, one small set a goal; each with its conditions and the grade it claims, which the gate tests.

Grades, from the strongest: EXACT, the same bits for every input (zeros' signs, infinities and NaN included, a NaN's
payload not); REAL, equal in real arithmetic: for finite inputs that overflow nowhere |left − right| ≤ 2·n·u·M with n
the roundings of both sides, u the unit roundoff and M the left side with every sum taken over absolute values (the
a-priori bound of N. J. Higham, Accuracy and Stability of Numerical Algorithms, §3.1), and what is not finite stands in
the same places; FINITE, as REAL but for finite inputs only. Anything else is unsound, and no rule here.

A condition compares (``=``, ``>``) integers or lists of them: ``(dims x)`` the sizes of a tensor, ``(vec-get d n)``,
``(vec-length d)``. It is read by egglog and by the gate alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from hypatia_lab.messages import unknown


class Grade(IntEnum):
    """How far both sides of a rule agree; a smaller grade is a stronger claim."""

    EXACT = 1
    REAL = 2
    FINITE = 3


@dataclass(frozen=True)
class Rule:
    """``left`` may be replaced by ``right`` where every condition of ``when`` holds; ``grade`` is the claim."""

    name: str
    left: str
    right: str
    grade: Grade
    when: tuple[str, ...] = ()

    def egglog(self, ruleset: str) -> str:
        """The rule in egglog's language; where it fires, ``(fired name class)`` remembers."""
        facts = " ".join((f"(= root_ {self.left})", *self.when))
        return f'(rule ({facts}) ((union root_ {self.right}) (fired "{self.name}" root_)) :ruleset {ruleset})'


def _same(first: str, axis: int, second: str, other: int) -> str:
    return f"(= (vec-get (dims {first}) {axis}) (vec-get (dims {second}) {other}))"


def _square(weight: str) -> str:
    return _same(weight, 0, weight, 1)


def _vector(bias: str) -> str:
    return f"(= 1 (vec-length (dims {bias})))"


def _as_last(bias: str, sizes: str) -> str:
    return f"(= (vec-get (dims {bias}) 0) (vec-get {sizes} (- (vec-length {sizes}) 1)))"


def _features(weight: str) -> str:
    # The custom operations flatten x to rows, which zero features leave undefined.
    return f"(> (vec-get (dims {weight}) 1) 0)"


_COLUMNS = (_vector("c"), _same("c", 0, "b", 1))
"""c is a number for each column of a·b."""

# An empty sum is 0 whatever stands beside it; taken in the other order it may meet an infinity and be NaN.
_SUMS = ("(> (vec-get (dims b) 0) 0)", "(> (vec-get (dims b) 1) 0)")

GOALS: dict[str, tuple[Rule, ...]] = {
    "linear_relu": (Rule("linear_relu", "(Relu (Linear x w b))", "(LinearRelu x w b)", Grade.REAL),),
    "apart": (
        Rule("linear_apart", "(Linear x w b)", "(LinearApart x w b)", Grade.REAL, (_vector("b"),)),
        Rule("linear_relu_apart", "(Relu (Linear x w b))", "(LinearReluApart x w b)", Grade.REAL, (_vector("b"),)),
    ),
    "split": (
        Rule("linear_relu_split", "(Relu (Linear x w b))", "(LinearReluSplit x w b)", Grade.REAL),
        Rule("linear_gelu_split", "(Gelu (Linear x w b) kind)", "(LinearGeluSplit x w b kind)", Grade.REAL),
    ),
    "linear_gelu": (
        Rule("linear_gelu", "(Gelu (Linear x w b) kind)", "(LinearGelu x w b kind)", Grade.REAL),
        Rule("linear_relu_gelu", "(Gelu (Relu (Linear x w b)) kind)", "(LinearReluGelu x w b kind)", Grade.REAL),
    ),
    "mlp": (
        Rule(
            *("mlp2", "(Linear (LinearRelu x w0 b0) w1 b1)", "(Mlp2 x w0 b0 w1 b1)", Grade.REAL),
            (_square("w0"), _square("w1"), _vector("b0"), _vector("b1"), _features("w0")),
        ),
        Rule(
            *("mlp3", "(Mlp2 (LinearRelu x w0 b0) w1 b1 w2 b2)", "(Mlp3 x w0 b0 w1 b1 w2 b2)", Grade.REAL),
            (_square("w0"), _vector("b0"), _features("w0")),
        ),
    ),
    "relu": (Rule("relu_relu", "(Relu (Relu x))", "(Relu x)", Grade.EXACT),),
    "transpose": (Rule("transpose_transpose", "(Transpose (Transpose x i j) i j)", "x", Grade.EXACT),),
    "dropout": (Rule("dropout_eval", "(Dropout x p false)", "x", Grade.EXACT),),
    "addmm": (
        Rule("add_mm", "(Add (Mm a b) c)", "(Addmm c a b)", Grade.REAL, _COLUMNS),
        Rule("mm_add", "(Add c (Mm a b))", "(Addmm c a b)", Grade.REAL, _COLUMNS),
        Rule(
            *("addmm_linear", "(Addmm c a (Transpose w 0 1))", "(Linear a w c)", Grade.REAL),
            (_vector("c"), _same("c", 0, "w", 0)),
        ),
        Rule("mm_linear", "(Mm a (Transpose w 0 1))", "(Linear a w (Absent))", Grade.REAL),
    ),
    "view": (
        Rule("relu_view", "(Relu (View x d))", "(View (Relu x) d)", Grade.EXACT),
        Rule("gelu_view", "(Gelu (View x d) kind)", "(View (Gelu x kind) d)", Grade.EXACT),
        Rule("add_views", "(Add (View x d) (View y d))", "(View (Add x y) d)", Grade.EXACT, ("(= (dims x) (dims y))",)),
        Rule(
            *("add_view_bias", "(Add (View x d) c)", "(View (Add x c) d)", Grade.EXACT),
            (_vector("c"), _as_last("c", "(dims x)"), _as_last("c", "d")),
        ),
        Rule("view_view", "(View (View x d) e)", "(View x e)", Grade.EXACT),
        Rule("view_same", "(View x d)", "x", Grade.EXACT, ("(= d (dims x))",)),
    ),
    "batch_norm": (
        Rule(
            "conv_batch_norm",
            "(BatchNorm (Conv2d x w b k) g c mean var eps)",
            "(Conv2d x (FoldedWeight w g var eps) (FoldedBias b g c mean var eps) k)",
            Grade.REAL,
        ),
    ),
    "conv_block": (
        Rule(
            "conv_instance_norm_gelu",
            "(Gelu (InstanceNorm (Conv2d x w b k) g c eps) kind)",
            "(ConvBlock x w b g c k eps kind)",
            Grade.EXACT,
        ),
    ),
    "matmul": (
        Rule("associate_right", "(Mm (Mm a b) c)", "(Mm a (Mm b c))", Grade.REAL, _SUMS),
        Rule("associate_left", "(Mm a (Mm b c))", "(Mm (Mm a b) c)", Grade.REAL, _SUMS),
    ),
}
"""Goal → its rules."""

DEFAULT = ("linear_relu", "apart", "mlp", "relu", "transpose", "dropout", "addmm", "view", "batch_norm")
"""The goals pursued unless asked otherwise. Not ``matmul`` (another order of products can lose more accuracy than a
fusion does), not ``split`` (products of split operands round otherwise than IEEE float32: an option of its own), not
``conv_block`` and not ``linear_gelu`` (their kernels have not been timed in a model yet)."""


def rules_of(goals: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules of some goals. Raises ``ValueError`` naming an unknown goal."""
    for goal in goals:
        if goal not in GOALS:
            raise ValueError(unknown("goal", goal, GOALS))
    return tuple(rule for goal in goals for rule in GOALS[goal])
