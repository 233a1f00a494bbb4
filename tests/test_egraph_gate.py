"""The gate of the e-graph's rules: every rule earns its grade, unsound ones are refused with a counterexample."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional

from hypatia_lab.egraph import GOALS, Grade, Rule, admit, examine
from hypatia_lab.egraph.terms import OPERATORS, IllTyped, Operator, Type, _broadcast, _same, parse

RULES = [rule for rules in GOALS.values() for rule in rules]


def _pointwise(name, function, arguments=1, roundings=1):
    shape = _same if arguments == 1 else _broadcast
    return Operator(name, ("T",) * arguments, shape, function, roundings=lambda *types: roundings)


def _last(x: Type) -> Type:
    if not x.shape:
        raise IllTyped("no last dimension")
    return x


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
        Operator("Sub", ("T", "T"), _broadcast, torch.sub, roundings=lambda x, y: 1, magnitude=torch.add),
        _pointwise("Ones", torch.ones_like, roundings=0),
        _pointwise("Zeros", torch.zeros_like, roundings=0),
        _pointwise("Exp", torch.exp),
        _pointwise("Half", lambda x: x.half().double(), roundings=0),
        Operator("Softmax", ("T",), _last, lambda x: torch.softmax(x, -1), roundings=lambda x: x.shape[-1] + 3),
        Operator(
            "LayerNorm",
            ("T",),
            _last,
            lambda x: functional.layer_norm(x, x.shape[-1:]),
            roundings=lambda x: 2 * x.shape[-1] + 5,
        ),
    )
}

UNSOUND = {
    "sqrt_square": ("(Sqrt (Square x))", "x"),
    "sqrt_product": ("(Sqrt (Mul x y))", "(Mul (Sqrt x) (Sqrt y))"),
    "softmax_shift": ("(Softmax (Add x c))", "(Softmax x)"),
    "layer_norm_twice": ("(LayerNorm (LayerNorm x))", "(LayerNorm x)"),
    "self_quotient": ("(Div x x)", "(Ones x)"),
    "relu_to_gelu": ("(Relu x)", "(Gelu x none)"),
    "gelu_by_sigmoid": ("(Gelu x kind)", "(Mul x (Sigmoid (Scaled x)))"),
    "drop_half_cast": ("(Half x)", "x"),
    "matmul_to_linear": ("(Mm x w)", "(Linear x w (Absent))"),
    "dropout_in_training": ("(Dropout x p training)", "x"),
    "linear_relu_without_relu": ("(Relu (Linear x w b))", "(Linear x w b)"),
    "mlp2_of_unequal_widths": ("(Linear (LinearRelu x w0 b0) w1 b1)", "(Mlp2 x w0 b0 w1 b1)"),
    "any_bias_to_addmm": ("(Add (Mm a b) c)", "(Addmm c a b)"),
    "view_to_nothing": ("(View x d)", "x"),
    "view_past_any_sum": ("(Add (View x d) c)", "(View (Add x c) d)"),
    "other_transpose": ("(Transpose (Transpose x i j) k l)", "x"),
    "sum_commutes_with_relu": ("(Relu (Add x y))", "(Add (Relu x) (Relu y))"),
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


def test_products_in_another_order_need_sums_that_are_not_empty():
    rule = next(rule for rule in GOALS["matmul"] if rule.name == "associate_right")
    verdict = examine(Rule(rule.name, rule.left, rule.right, rule.grade), trials=3000, seed=7)
    assert verdict.grade is Grade.FINITE


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


def test_shapes_are_those_of_torch():
    # The gate compares shapes too; these operators are in no rule, or with one group only.
    x, w = torch.randn(2, 4, 7, 6), torch.randn(6, 2, 3, 2)
    for dims in ((1, 1, 0, 0, 1, 1, 2), (2, 1, 1, 2, 1, 2, 2), (1, 3, 2, 0, 2, 1, 2)):
        operator = OPERATORS["Conv2d"]
        expected = operator.evaluate(x, w, None, dims)
        assert operator.shape(*(Type(tuple(t.shape), "float32") for t in (x, w)), None, dims).shape == expected.shape
    norm, kind = OPERATORS["InstanceNorm"], Type((2, 4, 7, 6), "float32")
    assert norm.shape(kind, None, None, "1e-05").shape == norm.evaluate(x, None, None, "1e-05").shape
    assert (kind.numel, kind.bytes) == (x.numel(), x.numel() * x.element_size())
