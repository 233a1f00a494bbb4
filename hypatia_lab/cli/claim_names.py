"""Whether there is what claims name: told before anything is measured for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hypatia_lab import variants
from hypatia_lab.claims.claim import AUTHOR, QUANTITIES, Claim
from hypatia_lab.claims.ledger import ClaimError
from hypatia_lab.experiments import EXPERIMENTS
from hypatia_lab.experiments.plan import CASES
from hypatia_lab.messages import unknown
from hypatia_lab.workloads import Workload, WorkloadError, parse_shape


class _Unknown(Exception):
    """A name that there is not; becomes a :class:`ClaimError` once its place is known."""


def ensure_named(claims: Iterable[Claim], place: str = "", *, experiment: str = "") -> None:
    """Refuse the first claim that names an experiment, workload, variant or case that there is not.

    Known are the lab's, a reader's ``experiment``, and the operations and variants that are registered by now; of what
    begins with :data:`AUTHOR` only records tell. Raises :class:`ClaimError` with ``place`` (the reader's file; where
    empty, the ledger's), the claim's id, what is unknown and what may be meant.
    """
    for claim in claims:
        try:
            _ensure(claim, {*EXPERIMENTS, *filter(None, [experiment])})
        except (WorkloadError, _Unknown) as cause:
            raise ClaimError(f"{place or claim.document.lower() + '.yaml'}: {claim.id}: {cause}") from None


def _ensure(claim: Claim, experiments: Collection[str]) -> None:
    _known("experiment", claim.experiment, experiments)
    works = [_workload(name) for name in claim.workloads]
    compared = claim.baseline if "baseline" in QUANTITIES[claim.quantity][1] else ""
    named = [(work, name) for work in works for name in (claim.variant, compared, *(own for _, own in claim.rewrites))]
    for figure in claim.figures:
        _known("case", figure.case, CASES.get(figure.topic, (figure.case,)), figure.topic)
        own = [_workload(figure.workload)] if figure.workload else works
        named += [(work, figure.variant) for work in own]
    for work, name in named:
        _known("variant", name, variants.variants(work.operation), work.operation)


def _workload(name: str) -> Workload:
    operation, shape, dtype, math, direction = name.split("/")
    return Workload(operation, parse_shape(shape), dtype, math, direction)


def _known(what: str, name: str, there: Collection[str], of: str = "") -> None:
    if name and name not in there and not name.startswith(AUTHOR):
        raise _Unknown(unknown(what, name, there, of))
