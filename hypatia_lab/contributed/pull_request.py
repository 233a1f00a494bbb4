"""The text of a pull request that brings a machine's records: what was measured, and what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypatia_lab import claims, formats, results
from hypatia_lab.records import Record
from hypatia_lab.tables.claims import verdict_text


def text(records: Sequence[Record], manifest: Mapping[str, Any], known: Sequence[Record]) -> str:
    """Markdown, as ``pull_request.md`` has it, on the ``records`` of one machine, which ``manifest`` describes;
    ``known`` are the lab's own, which may show a rewrite equal to its original."""
    apart = [f"With {len(manifest['traces'])} traces."] if manifest["traces"] else []
    apart += [f"Left out: {'; '.join(manifest['left_out'])}."] if manifest["left_out"] else []
    template = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    return template.format(
        machine=manifest["machine"],
        model=manifest["model"],
        facts=_facts(manifest),
        records="\n".join(map(_measured, records)),
        apart="".join(f"\n{line}\n" for line in apart),
        control=_control(manifest["control"]),
        ceilings=_ceilings(records),
        verdicts=_verdicts(records, known),
    )


def _facts(manifest: Mapping[str, Any]) -> str:
    chips, dirty = ", ".join(manifest["chips"]), manifest["dirty"]
    commits = ", ".join(commit[:12] for commit in manifest["commits"])
    facts = {
        "Machine": manifest["machine"],
        "Model": manifest["model"] + (f" (chip {chips})" if chips else ""),
        "Versions": ", ".join(f"{name} {', '.join(of)}" for name, of in manifest["versions"].items() if of),
        "Presets": ", ".join(manifest["presets"]),
        "Measured": " to ".join(dict.fromkeys(moment.partition("T")[0] for moment in manifest["measured"])),
        "Commits": commits + (" (some with changes that no commit holds)" if dirty else ""),
    }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items() if value)


def _measured(record: Record) -> str:
    run = record.run
    counts = f"{run['processes']} | {len(record.cells)} | {len(record.details)}"
    return f"| {run['experiment']} | {run['preset']} | {counts} |"


def _control(control: Mapping[str, float] | None) -> str:
    if control is None:
        return "No pair of identical code was measured."
    pairs, differences = control["pairs"], control["differences"]
    value, low, high = (100 * control[name] for name in ("rate", "rate_low", "rate_high"))
    share = formats.interval(value, low, high, "%")
    return f"{differences} of {pairs} pairs of identical code seemed different: {share}, where 5% is expected."


def _ceilings(records: Sequence[Record]) -> str:
    best = results.ceilings(records)
    if not best:
        return "None were measured."
    kinds = list(dict.fromkeys((quantity, kind) for quantity, kind, _ in best))
    lines = ["| what | clock | best |", "| --- | --- | --- |"]
    for quantity, kind, clock in sorted(best, key=lambda key: kinds.index(key[:2])):
        rate = formats.scaled(best[quantity, kind, clock], "FLOP/s" if quantity == "matmul" else "B/s")
        lines.append(f"| {f'products, {kind}' if kind else 'copying'} | {clock} | {rate} |")
    return "\n".join(lines)


def _verdicts(records: Sequence[Record], known: Sequence[Record]) -> str:
    rows = claims.statements(claims.judge(results.measured(records), beside=results.measured(known)))
    found = Counter(row.verdict for row in rows if row.machine == records[0].machine)
    return "\n".join(f"| {verdict_text(name)} | {found[name]} |" for name in claims.VERDICTS if found[name])
