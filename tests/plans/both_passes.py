"""Linear+ReLU's two passes as one node of autograd's in C++: right, without Python, and by PyTorch's where it must."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import driver  # noqa: F401
import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from hypatia_lab import training
from hypatia_lab.dispatch import LINEAR_RELU

PLAIN = LINEAR_RELU.direct["eager"]
FORMS = training.LAYERS["fused_backward"], training.EPILOGUE
Step = Callable[..., tuple[torch.Tensor, ...]]


def operands(x: bool = True, weight: bool = True, bias: bool | None = True) -> list[torch.Tensor | None]:
    """Of which a gradient is wanted; a bias that is None is not there."""
    draw = torch.Generator().manual_seed(0)
    sizes = ((2, 5, 24), x), ((40, 24), weight), ((40,), bias)
    return [None if on is None else torch.randn(size, generator=draw).requires_grad_(on) for size, on in sizes]


def agree(step: Step, **how: Any) -> None:
    given = operands(**how)
    wanted = [one for one in given if one is not None and one.requires_grad]
    for form in FORMS:
        torch.testing.assert_close(step(form, given, wanted), step(PLAIN, given, wanted), rtol=1e-4, atol=1e-4)


def gradients(form: Any, given: Any, wanted: Any) -> tuple[torch.Tensor, ...]:
    y = form(*given)
    return y.detach(), *torch.autograd.grad(y.sin().sum(), wanted)


def check_gradients_are_pytorchs() -> None:
    for how in ({}, {"x": False}, {"weight": False}, {"bias": False}, {"bias": None}, {"x": False, "bias": None}):
        agree(gradients, **how)


def check_what_has_no_features_has_gradients() -> None:
    for into, out in ((0, 40), (24, 0)):
        given: Any = [torch.ones(size, requires_grad=True) for size in ((2, 5, into), (out, into), (out,))]
        own, right = (gradients(form, given, given) for form in (training.EPILOGUE, PLAIN))
        torch.testing.assert_close(own, right)


def check_a_known_backward_pass_is_none_of_the_labs_python() -> None:
    agree(gradients)
    for form in FORMS:
        given: Any = operands()
        y, ran = form(*given), list[str]()
        sys.setprofile(lambda frame, event, told, ran=ran: ran.append(frame.f_code.co_filename))
        torch.autograd.grad(y.sin().sum(), given)
        sys.setprofile(None)
        assert [file for file in ran if "hypatia_lab" in file] == []


def check_second_derivatives_are_pytorchs() -> None:
    def twice(form: Any, given: Any, wanted: Any) -> tuple[torch.Tensor, ...]:
        once = torch.autograd.grad(form(*given).sin().sum(), wanted, create_graph=True)
        return torch.autograd.grad(torch.stack([one.square().sum() for one in once]).sum(), wanted)

    with pytest.warns(RuntimeWarning, match="second derivatives"):
        agree(twice)
    for how in ({}, {"x": False}, {"weight": False}, {"x": False, "bias": None}):  # another warning would be an error
        agree(twice, **how)


def check_many_gradients_at_once_are_pytorchs() -> None:
    many = torch.randn(3, 2, 5, 40, generator=torch.Generator().manual_seed(1))

    def batched(form: Any, given: Any, wanted: Any) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(form(*given), wanted, many, is_grads_batched=True)

    def mapped(form: Any, given: Any, wanted: Any) -> tuple[torch.Tensor, ...]:
        y = form(*given)
        return torch.func.vmap(lambda one: torch.autograd.grad(y, wanted, one, retain_graph=True))(many)

    agree(batched)
    with pytest.warns(RuntimeWarning, match="second derivatives"):
        agree(mapped)


def check_a_gradient_keeps_its_tangent() -> None:
    def dual(form: Any, given: Any, wanted: Any) -> Any:
        y = form(*given)
        with forward_ad.dual_level():
            found = torch.autograd.grad(y, wanted, forward_ad.make_dual(torch.ones_like(y), 2 * torch.ones_like(y)))
            return tuple(part for one in found for part in forward_ad.unpack_dual(one))

    with pytest.warns(RuntimeWarning, match="second derivatives"):
        agree(dual)


def check_y_is_the_callers_own() -> None:
    given: Any = operands()
    for form in FORMS:
        y = form(*given)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        with torch.no_grad():
            assert not form(*given).requires_grad


def check_pytorchs_own_keeps_and_computes_no_more_than_is_asked_for() -> None:
    given: Any = operands(x=False)
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: (kept.append(one.shape), one)[1], lambda one: one):
        total = training.EPILOGUE(*given).sum()
        frozen: Any = operands(weight=False)
        training.EPILOGUE(*frozen)
    assert kept == [(2, 5, 24), (2, 5, 40), (40, 24), (2, 5, 40)]
    with torch.profiler.profile() as profile:
        torch.autograd.grad(total, given[1:2])
    ran = [event.name for event in profile.events() or []]
    assert (ran.count("aten::mm"), ran.count("aten::threshold_backward")) == (1, 1)
    assert ran.count("aten::sum") == 0


def check_a_checkpoint_computes_it_again() -> None:
    def kept(form: Any, given: Any, wanted: Any, *, reentrant: bool) -> tuple[torch.Tensor, ...]:
        checkpoint(form, *given, use_reentrant=reentrant).sin().sum().backward()
        return tuple(one.grad for one in wanted)

    def both() -> tuple[Any, Any]:
        return (given := operands()), given

    for reentrant in (True, False):
        right = kept(PLAIN, *both(), reentrant=reentrant)
        for form in FORMS:
            torch.testing.assert_close(kept(form, *both(), reentrant=reentrant), right)
