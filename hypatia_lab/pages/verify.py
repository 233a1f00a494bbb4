"""Every variant that this machine can run, held against float64 at small shapes."""

from __future__ import annotations

from collections.abc import Sequence


def verify(operation: str, device: str = "auto", *, without: Sequence[str] = ()) -> str:
    """Check every variant of ``operation`` that this machine can run, in all its dtypes and directions.

    At the operation's small shapes. What torch.compile makes is left out: compiling takes from seconds to minutes, and
    a measurement checks it before it times it. ``without`` names variants that are known to be wrong and are left out.
    Returns a constant line a direction; raises ``AssertionError`` naming each variant that is wrong and how.
    """
    import logging
    import warnings

    from hypatia_lab.variants import load, variants
    from hypatia_lab.workloads import DIRECTIONS

    load()

    # torch's advice differs from machine to machine; a notebook's output must not.
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    left_out = f" (left out: {', '.join(without)}, known to be wrong)" if without else ""
    lines = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for direction in DIRECTIONS:
                if not any(direction in variant.directions for variant in variants(operation).values()):
                    continue
                wrong = _wrong_variants(operation, device, direction, without)
                assert not wrong, "\n".join(wrong)
                work = operation if direction == "forward" else f"{operation}, {direction.replace('_', ' and ')}"
                says = "every variant this machine can run, torch.compile's aside, agrees with float64"
                lines.append(f"{work}: {says}{left_out}")
    finally:
        logging.disable(before)
    return "\n".join(lines)


def _wrong_variants(operation: str, device: str, direction: str, without: Sequence[str]) -> list[str]:
    from hypatia_lab import check, machine
    from hypatia_lab.variants import variants
    from hypatia_lab.workloads import DTYPES, SPLIT, Workload, operations

    place = machine.choose_device(device)
    wrong = []
    spec = operations()[operation]
    plain = {dtype: [math for math in spec.maths(dtype) if math not in SPLIT] for dtype in DTYPES}
    kinds = [(dtype, math) for dtype, maths in plain.items() for math in (maths if place == "cuda" else maths[:1])]
    for dtype, math in kinds:
        for shape in spec.small_shapes:
            workload = Workload(operation, shape, dtype, math, direction)
            if all(variant.needs(workload, place) for variant in variants(operation).values()):
                continue
            with workload.precision():
                problem = check.Problem(workload, place)
                for name, variant in variants(operation).items():
                    if variant.compiles or name in without or variant.needs(workload, place):
                        continue
                    run = variant.factory(workload, problem.inputs)
                    found = check.check(run, problem, place="cpu" if variant.host else "")
                    if not found.ok:
                        wrong.append(f"{name} at {workload.shape_text} {dtype} {math}: {found.reason}")
    return wrong
