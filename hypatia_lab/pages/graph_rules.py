"""The graph optimizer's rules, each with the grade that its gate grants while the page is made, and wrong ones."""

from __future__ import annotations

REFUSED = {
    "ReLU lost behind a Linear": ("(Relu (Linear x w b))", "(Linear x w b)"),
    "ReLU as GELU": ("(Relu x)", "(Gelu x none)"),
    "product as Linear, not transposed": ("(Mm x w)", "(Linear x w (Absent))"),
    "dropout dropped in training": ("(Dropout x p training)", "x"),
    "any sum behind a product as addmm": ("(Add (Mm a b) c)", "(Addmm c a b)"),
    "unequal layers as one MLP kernel": ("(Linear (LinearRelu x w0 b0) w1 b1)", "(Mlp2 x w0 b0 w1 b1)"),
    "ReLU of a sum, term by term": ("(Relu (Add x y))", "(Add (Relu x) (Relu y))"),
    "two transposes, whichever": ("(Transpose (Transpose x i j) k l)", "x"),
    "a view dropped": ("(View x d)", "x"),
}
"""Rules that look right, and are not: what the gate must refuse."""


def own(trials: int = 40) -> list[dict[str, str]]:
    """A line a rule: the grade that it claims, and the one that ``trials`` drawings leave it; the tests take more."""
    from hypatia_lab.egraph import DEFAULT, GOALS, examine

    return [
        {
            "goal": goal + " (when asked)" * (goal not in DEFAULT),
            "rule": f"{rule.left} → {rule.right}",
            "where": ", ".join(rule.when) or "anywhere",
            "claims": rule.grade.name,
            "gate grants": getattr(examine(rule, trials=trials).grade, "name", "refused"),
        }
        for goal, rules in GOALS.items()
        for rule in rules
    ]


def held(lines: list[dict[str, str]]) -> int:
    """How many of :func:`own` are granted what they claim, or more."""
    from hypatia_lab.egraph.rules import Grade

    granted = [line for line in lines if line["gate grants"] in Grade.__members__]
    return sum(Grade[line["gate grants"]] <= Grade[line["claims"]] for line in granted)


def wrong(trials: int = 400) -> list[dict[str, str]]:
    """A line each of :data:`REFUSED`, with what the gate says."""
    from hypatia_lab.egraph import Rule, examine
    from hypatia_lab.egraph.rules import Grade

    rules = {name: Rule("refused", left, right, Grade.FINITE) for name, (left, right) in REFUSED.items()}
    return [
        {
            "what is wrong": name,
            "rule": f"{rule.left} → {rule.right}",
            "gate grants": getattr(examine(rule, trials=trials).grade, "name", "refused"),
        }
        for name, rule in rules.items()
    ]
