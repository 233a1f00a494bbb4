"""The text of a pull request that brings a machine's records: what was measured, and what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypatia_lab import claims, formats, results
from hypatia_lab.records import Record
from hypatia_lab.tables.claims import verdict_text


def text(records: Sequence[Record], manifest: Mapping[str, Any], known: Sequence[Record]) -> str:
    """Markdown on the ``records`` of one machine, which ``manifest`` describes; ``known`` are the lab's own, which
    may show a rewrite equal to its original."""
    versions = [f"{name} {', '.join(of)}" for name, of in manifest["versions"].items() if of]
    first, last = (moment.partition("T")[0] for moment in manifest["measured"])
    facts = {
        "Machine": manifest["machine"],
        "Model": manifest["model"] + (f" (chip {', '.join(manifest['chips'])})" if manifest["chips"] else ""),
        "Versions": ", ".join(versions),
        "Presets": ", ".join(manifest["presets"]),
        "Measured": first if first == last else f"{first} to {last}",
        "Commits": ", ".join(commit[:12] for commit in manifest["commits"])
        + (" (some with changes that no commit holds)" if manifest["dirty"] else ""),
    }
    lines = [f"# Records of {manifest['machine']}: {manifest['model']}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if value]
    lines += ["", "## What was measured", "", "| experiment | preset | processes | cells | details |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for record in records:
        run = record.run
        numbers = f"{run['processes']} | {len(record.cells)} | {len(record.details)}"
        lines.append(f"| {run['experiment']} | {run['preset']} | {numbers} |")
    if manifest["traces"]:
        lines += ["", f"With {len(manifest['traces'])} traces."]
    if manifest["left_out"]:
        lines += ["", f"Left out: {'; '.join(manifest['left_out'])}."]
    lines += ["", "## A/A control", "", _control(manifest["control"]), "", "## Ceilings", "", *_ceilings(records)]
    return "\n".join([*lines, "", "## Verdicts", "", *_verdicts(records, known), ""])


def _control(control: Mapping[str, float] | None) -> str:
    if control is None:
        return "No pair of identical code was measured."
    low, high = (100 * control[name] for name in ("rate_low", "rate_high"))
    pairs, differences = control["pairs"], control["differences"]
    share = formats.interval(100 * control["rate"], low, high, "%")
    return f"{differences} of {pairs} pairs of identical code seemed different: {share}, where 5% is expected."


def _ceilings(records: Sequence[Record]) -> list[str]:
    best = results.ceilings(records)
    if not best:
        return ["None were measured."]
    kinds = [(quantity, kind) for quantity, kind, _ in best]
    lines = ["| what | clock | best |", "| --- | --- | --- |"]
    for quantity, kind in dict.fromkeys(kinds):
        for clock in [clock for one, of, clock in best if (one, of) == (quantity, kind)]:
            unit = "FLOP/s" if quantity == "matmul" else "B/s"
            rate = formats.scaled(best[quantity, kind, clock], unit)
            lines.append(f"| {f'products, {kind}' if kind else 'copying'} | {clock} | {rate} |")
    return lines


def _verdicts(records: Sequence[Record], known: Sequence[Record]) -> list[str]:
    machine = records[0].machine
    rows = claims.statements(claims.judge(records, beside=known))
    found = Counter(row.verdict for row in rows if row.machine == machine)
    lines = [
        f"Of the ledger's claims that a machine decides, on {machine}:",
        "",
        "| verdict | claims |",
        "| --- | --- |",
    ]
    return lines + [f"| {verdict_text(name)} | {found[name]} |" for name in claims.VERDICTS if found[name]]
