"""Who of several forms is chosen by their times: the library's, unless one of the lab's is surely quicker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hypatia_lab import races

SURE, NOISY = (0.99, 1.01), (0.6, 1.4)
"""Between what times of a form lie: bounds, as shares of the usual one."""


def test_a_form_within_the_margin_is_not_chosen() -> None:
    eager = [100.0, 101.0, 99.0, 100.5]
    assert races.quickest({"eager": eager, "own": [99.0, 100.0, 98.0, 99.5]}) == ("eager", "")
    assert races.quickest({"eager": eager, "own": [90.0, 91.0, 89.0, 90.5]}) == ("own", "eager")
    # Quicker on average, but nobody knows: the race is to tell, and to tell surely.
    unsure = {"eager": eager, "own": [50.0, 150.0, 60.0, 140.0]}
    assert races.quickest(unsure) == ("own", "eager")
    assert races.confirmed("own", "eager", unsure) == "eager"


def test_the_library_to_beat_is_its_quickest_form() -> None:
    samples = {"eager": [100.0] * 4, "epilogue": [80.0, 80.5, 80.0, 80.5], "own": [90.0, 90.5, 90.0, 90.5]}
    assert races.quickest(samples) == ("epilogue", "")
    assert races.quickest(samples | {"own": [70.0, 70.5, 70.0, 70.5]}) == ("own", "epilogue")
    assert races.quickest({"own": [1.0, 1.0]}) == ("eager", "")


def test_whoever_takes_a_place_has_to_win_twice() -> None:
    """Once, eager took longer than another on a GPU by chance, and that other was 9% slower from then on."""
    slow, quick, near = [21.0] * 4, [19.0] * 4, [20.9] * 4
    assert races.confirmed("group_norm", "", {"eager": slow, "group_norm": quick}) == "group_norm"
    # One of the lab's that loses leaves the place to whichever of the library's has won.
    again = {"eager": quick, "group_norm": slow, "own": near}
    assert races.confirmed("own", "group_norm", again) == "eager"
    assert races.confirmed("own", "group_norm", again | {"eager": slow, "group_norm": near}) == "group_norm"
    assert races.confirmed("own", "group_norm", again | {"own": [15.0] * 4}) == "own"
    # Quicker on average, and not surely.
    assert races.confirmed("group_norm", "", {"eager": [19.0, 21.0] * 2, "group_norm": [21.0, 18.5] * 2}) == "eager"
    # Who failed in the race is not chosen.
    assert races.confirmed("own", "group_norm", {"eager": quick}) == "eager"


# ---------------------------------------------------------------- for who waits for a training step


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What is chosen by usual times back to back and by CUDA graph, on a GPU unless said; ``noise`` is the first's."""

    def choose(hot: dict[str, float], graph: dict[str, float], noise: Any = SURE, device: str = "cuda") -> str:
        def timed(runs: Any, clock: str, device: str, budget_s: float) -> dict[str, list[float]]:
            usual, bounds = (hot, noise) if clock == "hot" else (graph, SURE)
            found = {}
            for place, name in enumerate(runs):
                if name in usual:  # what scatters does so in turn, and so agrees on average
                    found[name] = [usual[name] * bounds[(place + number) % 2] for number in range(8)]
            return found

        monkeypatch.setattr(races, "timed", timed)
        return races.winner_in_training(dict.fromkeys(hot, lambda: None), device)

    return choose


def test_a_form_that_is_surely_quicker_back_to_back_is_the_choice(chosen: Any) -> None:
    assert chosen({"eager": 10.0, "own": 5.0}, {"eager": 5.0, "own": 10.0}) == "own"


def test_where_that_is_not_sure_the_gpus_time_decides(chosen: Any) -> None:
    hot, graph = {"eager": 10.0, "own": 9.0}, {"eager": 10.0, "own": 5.0}
    assert chosen(hot, graph, NOISY) == "own"
    assert chosen(hot, graph | {"own": 9.9}, NOISY) == "eager"
    assert chosen({"eager": 9.0, "own": 10.0}, graph, NOISY) == "own"
    # PyTorch's epilogue beats eager in the same way; whichever of the two was ahead is what is to be beaten.
    assert chosen({"eager": 10.0, "epilogue": 9.5}, {"eager": 10.0, "epilogue": 8.0}, NOISY) == "epilogue"
    epilogue = {"eager": 10.0, "epilogue": 5.0}
    assert chosen({**epilogue, "own": 5.0}, {"eager": 10.0, "epilogue": 9.0, "own": 6.0}) == "own"
    assert chosen({**epilogue, "own": 5.0}, {"eager": 10.0, "epilogue": 10.0, "own": 10.0}) == "epilogue"


def test_pytorchs_forms_change_places_by_the_gpus_time_too(chosen: Any) -> None:
    near = {"eager": 10.0, "epilogue": 9.9}
    assert chosen(near, {"eager": 5.0, "epilogue": 10.0}) == "eager"
    assert chosen(near, {"eager": 10.0, "epilogue": 10.0}) == "eager"
    assert chosen({"eager": 10.0, "epilogue": 5.0}, {"eager": 5.0, "epilogue": 10.0}) == "epilogue"


def test_who_is_surely_slower_back_to_back_is_not_chosen_whatever_the_gpu_says(chosen: Any) -> None:
    assert chosen({"eager": 10.0, "own": 11.0}, {"eager": 10.0, "own": 2.0}) == "eager"
    assert chosen({"eager": 10.0, "own": 11.0, "other": 9.9}, {"eager": 9.0, "own": 2.0, "other": 5.0}) == "other"


def test_a_cpu_and_what_cannot_be_captured_have_calls_back_to_back_alone(chosen: Any) -> None:
    assert chosen({"eager": 10.0, "own": 9.0}, {"eager": 10.0, "own": 5.0}, NOISY, device="cpu") == "eager"
    assert chosen({"eager": 10.0, "own": 9.0}, {}, NOISY) == "eager"
    assert chosen({"eager": 10.0, "own": 9.0}, {"own": 5.0}, NOISY) == "eager"
    assert chosen({"eager": 10.0, "epilogue": 5.0}, {}) == "epilogue"
    # Nobody knows how the form that is ahead would do.
    assert chosen({"eager": 10.0, "epilogue": 9.5, "own": 9.4}, {"eager": 10.0, "own": 5.0}) == "epilogue"
