"""The gate of the e-graph's rules: every rule earns its grade, unsound ones are refused with a counterexample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hypatia_lab.egraph import GOALS, Grade, Rule, admit, examine
from hypatia_lab.egraph.terms import OPERATORS, IllTyped, Operator, Type, parse
from hypatia_lab.pages.graph_rules import REFUSED

RULES = [rule for rules in GOALS.values() for rule in rules]


def _pointwise(name, function, arguments=1, roundings=1, subtracts=()):
    return Operator(name, ("T",) * arguments, function, roundings=roundings, subtracts=subtracts)


EXTRA = {
    operator.name: operator
    for operator in (
        _pointwise("Sqrt", torch.sqrt),
        _pointwise("Square", torch.square),
        _pointwise("Neg", torch.neg, roundings=0),
        _pointwise("Sigmoid", torch.sigmoid),
        _pointwise("Scaled", lambda x: 1.702 * x),
        _pointwise("Mul", torch.mul, 2),
        _pointwise("Div", torch.div, 2),
        _pointwise("Sub", torch.sub, 2, subtracts=(1,)),
        _pointwise("Ones", torch.ones_like, roundings=0),
        _pointwise("Zeros", torch.zeros_like, roundings=0),
        _pointwise("Half", lambda x: x.half().double(), roundings=0),
    )
}

UNSOUND = REFUSED | {
    "sqrt_square": ("(Sqrt (Square x))", "x"),
    "self_quotient": ("(Div x x)", "(Ones x)"),
    "gelu_by_sigmoid": ("(Gelu x kind)", "(Mul x (Sigmoid (Scaled x)))"),
    "drop_half_cast": ("(Half x)", "x"),
    "view_past_any_sum": ("(Add (View x d) c)", "(View (Add x c) d)"),
}
FINITE_ONLY = {
    "times_zero": ("(Mul x (Zeros x))", "(Zeros x)"),
    "self_difference": ("(Sub x x)", "(Zeros x)"),
    "there_and_back": ("(Sub (Add x y) y)", "x"),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_earns_the_grade_it_claims(rule):
    verdict = examine(rule, trials=120 if rule.name in ("mlp2", "mlp3", "conv_batch_norm_relu") else 240)
    assert verdict.grade is not None, verdict.counterexample
    assert verdict.grade <= rule.grade, verdict.counterexample


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_rule_is_refused_with_a_counterexample(name):
    verdict = examine(Rule(name, *UNSOUND[name], Grade.FINITE), operators=EXTRA)
    assert verdict.grade is None
    assert " for " in verdict.counterexample
    assert 0 < verdict.trials < 400


@pytest.mark.parametrize("name", FINITE_ONLY)
def test_what_holds_for_finite_inputs_only_is_not_granted_more(name):
    same = ("(= (dims x) (dims y))",) if name == "there_and_back" else ()
    verdict = examine(Rule(name, *FINITE_ONLY[name], Grade.EXACT, same), operators=EXTRA)
    assert verdict.grade is Grade.FINITE
    assert "nan" in verdict.counterexample or "inf" in verdict.counterexample


def test_signed_zeros_stand_against_the_strongest_grade_only():
    verdict = examine(Rule("plus_zero", "(Add x (Zeros x))", "x", Grade.EXACT), operators=EXTRA)
    assert verdict.grade is Grade.REAL
    assert "0.0 against -0.0" in verdict.counterexample


@pytest.mark.parametrize("rule", GOALS["matmul"], ids=lambda rule: rule.name)
def test_products_in_another_order_need_sums_that_are_not_empty(rule):
    for seed, kept in ((2, 0), (3, 1)):  # neither condition is enough alone
        assert examine(replace(rule, when=rule.when[kept : kept + 1]), trials=600, seed=seed).grade is Grade.FINITE
        assert examine(rule, trials=600, seed=seed).grade is Grade.REAL


def test_a_rule_that_no_drawing_fits_is_not_granted_anything():
    verdict = examine(Rule("never", "(Relu x)", "x", Grade.EXACT, ("(= 9 (vec-length (dims x)))",)), trials=5)
    assert verdict.grade is None
    assert "not tested" in verdict.counterexample


def test_the_gate_names_the_rules_that_claim_too_much():
    admit((RULES[3],))
    with pytest.raises(ValueError, match=r"nothing claims EXACT, refused: .* against "):
        admit((Rule("nothing", "(Relu x)", "x", Grade.EXACT),))
    (rule,) = (rule for rule in RULES if rule.name == "add_mm")
    with pytest.raises(ValueError, match="add_mm claims EXACT, only REAL"):
        admit((Rule(rule.name, rule.left, rule.right, Grade.EXACT, rule.when),))


def test_a_sum_in_another_order_stays_within_the_bound_and_one_wrong_digit_does_not():
    wrong = _pointwise("Off", lambda x: x * (1 + 2.0**-40))
    assert examine(Rule("off", "(Neg x)", "(Neg (Off x))", Grade.REAL), operators=EXTRA | {"Off": wrong}).grade is None
    right = Rule("sum", "(Add (Add x y) z)", "(Add x (Add y z))", Grade.REAL)
    assert examine(right).grade is Grade.REAL


def test_expressions_are_read():
    assert parse("(Transpose x 0 1)") == ("Transpose", "x", 0, 1)
    assert parse("(Dropout (Relu x) p false)") == ("Dropout", ("Relu", "x"), "p", False)
    for text in ("(Relu x", "Relu x)", "x y", ""):
        with pytest.raises(ValueError, match="unmatched|not one"):
            parse(text)


def typed(*shapes):
    """Types of shapes; what is no shape as it is."""
    return [Type(shape, "float32") if isinstance(shape, tuple) else shape for shape in shapes]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Linear", typed((3, 4), (5, 4), (1,))),
        ("Linear", typed((3, 4), (4,), None)),
        ("Linear", [*typed((3, 4), (5, 4)), Type((5,), "float64")]),
        ("Mlp2", typed((2, 4), (5, 4), (5,), (3, 5), (3,))),
        ("Mlp2", typed((2, 4), (4, 4), None, (4, 4), (4,))),
        ("Add", typed((3,), (4,))),
        ("Conv2d", [*typed((4, 7, 6), (6, 4, 3, 2), None), (1, 1, 0, 0, 1, 1, 1)]),
        ("Conv2d", [*typed((2, 4, 7, 6), (6, 4, 3, 2), (1,)), (1, 1, 0, 0, 1, 1, 1)]),
        ("Conv2d", [*typed((2, 4, 7, 6), (5, 2, 3, 2), None), (1, 1, 0, 0, 1, 1, 2)]),
        ("BatchNorm", [*typed((2, 4, 3), (1, 4), *[(4,)] * 3), 1e-5]),
        ("InstanceNorm", [*typed((2, 4, 1), None, None), 1e-5]),
        ("InstanceNorm", [*typed((2, 4), None, None), 1e-5]),
    ],
)
def test_what_does_not_fit_has_no_type(name, arguments):
    """Where PyTorch would take it, but for the sum."""
    with pytest.raises(IllTyped):
        OPERATORS[name].type(*arguments)


def test_a_condition_that_cannot_be_computed_is_named():
    with pytest.raises(ValueError, match="conditions know no vec-sum"):
        examine(Rule("sums", "(Relu x)", "x", Grade.EXACT, ("(= 1 (vec-sum (dims x)))",)))
