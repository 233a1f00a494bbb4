"""What a reader's file declares, told by a fresh process that runs it to one that never does.

The process of the command plans, writes records and judges. A file that is run there can change how it does so, and be
a stranger's. So a fresh process runs the file first, which may crash or hang, and tells in plain JSON what it declares.
That has been in the file's hands: it is taken for data, held against what it must look like, and registered as an
operation and variants which have names and amounts, and nothing to call.
"""

from __future__ import annotations

import gc
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from hypatia_lab.bench import sessions
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.judged import reading
from hypatia_lab.judged.confine import confine
from hypatia_lab.strangers.reader_kernel import BASELINES, NAME, Own, OwnError, amounts, ensure_fitting, load
from hypatia_lab.variants import ORIGINS, registered, variant, variants
from hypatia_lab.workloads import DTYPES, Operation, operations, register

TEXT = 1000
"""So many characters of a summary or of a label are told."""
REASON = 2000
"""And of a reason why a file is refused, in which there are paths."""
MOST = 1000
"""So many shapes, or variants, one file may declare."""
LARGEST = 2**63 - 1
"""FLOPs, or bytes, of one call."""

Shapes = Sequence[tuple[int, ...]]


def rehearse(
    path: Path,
    log: Path,
    silence_s: float,
    *,
    problem: Path | None = None,
    kind: str = "kernelbench",
    shapes: Shapes = (),
    dtypes: Sequence[str] = (),
    fresh: sessions.Fresh | None = None,
) -> Own:
    """Run the file ``path`` in a fresh process and register here what it declares, which is returned.

    ``shapes`` and ``dtypes`` are to be measured instead of the file's own, unless they are empty. With ``problem``, the
    file is a candidate for that one, of the format ``kind`` (:mod:`hypatia_lab.strangers.tasks`), which alone says what
    is declared.
    ``log`` gets what the process printed; ``silence_s`` is the longest (s) that it may say nothing. ``fresh`` is one
    that was told the same already (:func:`hypatia_lab.judged.reading.plan`).

    Raises :class:`OwnError` with the reason when the file is refused there, kills the process or has it hang, for a
    shape or dtype that the operation does not have, and for what :func:`adopt` does not take.
    """
    refused: list[str] = []
    told: list[Any] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "refused":
            refused.append(_printable(str(event.get("reason")), REASON))
        elif event["event"] == "declared":
            told.append(event.get("operation"))

    plan = reading.plan(path, problem, kind, shapes, dtypes)
    how: dict[str, Any] = {"fresh": fresh} if fresh else {"env": sessions.scratch(log.parent)}
    casualty = sessions.run_session(__name__, plan, log, on_event=on_event, silence_s=silence_s, **how)
    if refused:
        raise OwnError(refused[0])
    if casualty is not None:
        raise OwnError(f"{path}: cannot be imported: {casualty.reason}")
    if not told:
        raise OwnError(f"{path}: cannot be imported: the process ended before it was done")
    return adopt(path, told[0], shapes, dtypes)  # a candidate that is run since cannot tell otherwise


# ---------------------------------------------------------------- in the process that runs the file


def describe(path: Path, own: Own) -> dict[str, Any]:
    """What ``own``, of the file ``path``, declares, as plain JSON: what :func:`adopt` takes.

    ``flops`` has a number for each of its shapes, ``traffic`` (bytes) a list for each with a number for each dtype.
    Raises :class:`OwnError` for a shape or dtype that the operation does not have, or amounts that do not work out.
    """
    dims = operations()[own.name].dims
    ensure_fitting(own.name, dims, own.shapes, own.dtypes)
    found = [amounts(path, own, shape) for shape in own.shapes]
    there = variants(own.name)
    return {
        "name": own.name,
        "summary": _printable(own.summary, TEXT),
        "dims": list(dims),
        "shapes": [list(shape) for shape in own.shapes],
        "dtypes": list(own.dtypes),
        "flops": [flops for flops, _ in found],
        "traffic": [list(traffic) for _, traffic in found],
        "variants": [
            {
                "name": one.name,
                "origin": one.origin,
                "label": _printable(one.label, TEXT),
                "splits": list(one.splits) if one.splits else None,
                "operator": one.operator,
            }
            for one in (there[name] for name in own.variants)
        ],
    }


def main() -> None:
    """Entry of the process of :func:`rehearse`."""
    gc.enable()
    if sys.platform.startswith("linux"):
        confine(Path(tempfile.gettempdir()), Path(tempfile.gettempdir(), "caches"))
    plan, emit = sessions.child_plan()
    emit("begin", what=plan["path"])
    path = Path(plan["path"])
    try:
        if plan["problem"]:
            from hypatia_lab.strangers.tasks import FORMATS

            form, problem = FORMATS[plan["kind"]], Path(plan["problem"])
            path = form.located(path)
            own = form.load(path, problem, candidate=False)
            emit("declared", operation=describe(path, own))
            form.tried(path, problem)
        else:
            own = load(path)
            shapes = tuple(map(tuple, plan["shapes"])) or own.shapes
            own = replace(own, shapes=shapes, dtypes=tuple(plan["dtypes"]) or own.dtypes)
            emit("declared", operation=describe(path, own))
    except OwnError as cause:
        emit("refused", reason=str(cause))
    emit("end")  # a thread that the file has left behind refuses nothing


def _printable(text: str, most: int) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()[:most]


# ---------------------------------------------------------------- in the process that does not


def _whole(found: object, least: int) -> bool:
    return type(found) is int and least <= found <= LARGEST


def _text(found: object) -> bool:
    return type(found) is str and 0 < len(found) <= TEXT and found.isprintable()


def _name(found: object) -> bool:
    return type(found) is str and re.fullmatch(NAME, found) is not None


def _list(found: object, fits: Callable[[Any], bool]) -> bool:
    return type(found) is list and 0 < len(found) <= MOST and all(map(fits, found))


def _splits(found: object) -> bool:
    return found is None or (type(found) is list and len(found) == 2 and _text(found[0]) and _whole(found[1], 1))


_amount, _positive = partial(_whole, least=0), partial(_whole, least=1)
_positives = partial(_list, fits=_positive)

VARIANT: dict[str, Callable[[Any], bool]] = {
    "name": lambda found: _name(found) and found not in BASELINES,
    "origin": lambda found: type(found) is str and found in ORIGINS,
    "label": _text,
    "splits": _splits,
    "operator": lambda found: type(found) is bool,
}
"""What each variant beside the baselines must look like."""
OPERATION: dict[str, Callable[[Any], bool]] = {
    "name": _name,
    "summary": _text,
    "dims": partial(_list, fits=_text),
    "shapes": partial(_list, fits=_positives),
    "dtypes": partial(_list, fits=lambda found: type(found) is str and found in DTYPES),
    "flops": partial(_list, fits=_amount),
    "traffic": partial(_list, fits=_positives),
    "variants": partial(_list, fits=lambda found: not _amiss(found, VARIANT)),
}
"""What each part of a description must look like by itself."""


def _amiss(found: object, form: Mapping[str, Callable[[Any], bool]]) -> str:
    """The first part of ``found`` that is not of ``form``; empty where all are, and there are no others."""
    if type(found) is not dict or set(found) != set(form):
        return "its parts"
    return next((part for part, fits in form.items() if not fits(found[part])), "")


def adopt(path: Path, told: Any, shapes: Shapes = (), dtypes: Sequence[str] = ()) -> Own:
    """Register the operation and the variants that ``told`` describes, of the file ``path``; see :func:`describe`.

    FLOPs and bytes are looked up. Whoever wants inputs, an answer or a kernel of it is told that the file is not run
    here. ``shapes`` and ``dtypes`` are those that were asked for.

    Raises :class:`OwnError` naming what is not as it must be; nothing is registered then.
    """
    if wrong := _amiss(told, OPERATION) or _at_odds(told, shapes, dtypes):
        raise OwnError(f"{path}: what its process told of it is not as it must be: {wrong}")
    name, own_dtypes = told["name"], tuple(told["dtypes"])
    own_shapes = tuple(map(tuple, told["shapes"]))
    if name in {*EXPERIMENTS, *operations(), *registered()}:
        raise OwnError(f"{path}: operation name {name!r} is taken; choose another")
    ensure_fitting(name, tuple(told["dims"]), own_shapes, own_dtypes)
    flops = dict(zip(own_shapes, told["flops"], strict=True))
    bytes_moved = [amount for row in told["traffic"] for amount in row]
    cases = ((shape, DTYPES[dtype]) for shape, dtype in product(own_shapes, own_dtypes))
    traffic = dict(zip(cases, bytes_moved, strict=True))

    def elsewhere(*_: object) -> Any:
        raise OwnError(f"{path}: is not run in this process")

    register(
        Operation(
            name=name,
            dims=tuple(told["dims"]),
            summary=told["summary"],
            make_inputs=elsewhere,
            reference=elsewhere,
            flops=flops.__getitem__,
            traffic=lambda shape, itemsize: traffic[shape, itemsize],
        )
    )
    for baseline in BASELINES:
        variant(name, baseline, origin="peer", baseline=baseline == BASELINES[0])(elsewhere)
    for one in told["variants"]:
        splits = tuple(one["splits"]) if one["splits"] else None
        how = {key: one[key] for key in ("origin", "label", "operator")}
        variant(name, one["name"], splits=splits, **how)(elsewhere)
    return Own(name, told["summary"], own_shapes, own_dtypes)


def _at_odds(told: dict[str, Any], shapes: Shapes, dtypes: Sequence[str]) -> str:
    """What of a description whose parts are as they must be does not go together, or with what was asked for."""
    names = [one["name"] for one in told["variants"]]
    for part, fits in (
        ("shapes", not shapes or told["shapes"] == list(map(list, shapes))),
        ("dtypes", not dtypes or told["dtypes"] == list(dtypes)),
        ("flops", len(told["flops"]) == len(told["shapes"])),
        ("traffic", [*map(len, told["traffic"])] == [len(told["dtypes"])] * len(told["shapes"])),
        ("variants", len(set(names)) == len(names) and any(one["origin"] == "own" for one in told["variants"])),
    ):
        if not fits:
            return part
    return ""


if __name__ == "__main__":
    main()
