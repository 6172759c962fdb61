"""What a check found, and the one sentence that all of them come to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from megatron_tlm.errors import few

Status = Literal["pass", "warn", "fail", "skip"]
_ORDER: tuple[Status, ...] = ("fail", "warn", "skip", "pass")


@dataclass(frozen=True)
class Finding:
    """`text` is what was found, or why nothing could be; `remedy` what to do about a warning or a failure; `where` the
    nodes, if not all."""

    check: str
    status: Status
    text: str
    remedy: str = ""
    where: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Finding":
        return cls(**{**told, "where": tuple(told["where"])})


def passed(check: str, text: str) -> Finding:
    return Finding(check, "pass", text)


def warned(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "warn", text, remedy)


def failed(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "fail", text, remedy)


def skipped(check: str, reason: str) -> Finding:
    """What could not be looked at, because of something else that failed."""
    return Finding(check, "skip", reason)


def refused(check: str, error: Exception) -> Finding:
    """A failure that a sentence of this package tells: what is wrong, then a semicolon, then the way out."""
    text, _, remedy = " ".join(str(error).split()).partition("; ")
    return failed(check, text, remedy or "mend that and look again")


def healthy(findings: Iterable[Finding]) -> bool:
    return all(finding.status != "fail" for finding in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """One sentence to act on: the first failure and its remedy, or that there is none."""
    failures = [item for item in findings if item.status == "fail"]
    warnings = [item for item in findings if item.status == "warn"]
    if failures:
        first = failures[0]
        more = f" (and {len(failures) - 1} more to mend, above)" if len(failures) > 1 else ""
        return f"not ready: {first.check}{_where(first)}: {first.text}; {first.remedy}{more}"
    if warnings:
        first = warnings[0]
        more = f" (and {len(warnings) - 1} more, above)" if len(warnings) > 1 else ""
        return f"ready, with a warning: {first.check}{_where(first)}: {first.text}; {first.remedy}{more}"
    count = sum(item.status == "pass" for item in findings)
    return f"ready: {count} of {count} checks passed"


def table(findings: Sequence[Finding]) -> str:
    """A line a finding, and below each that is to be mended, what to do."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:4}  {finding.check:{width}}  {finding.text}{_where(finding)}")
        if finding.remedy:
            lines.append(f"{'':4}  {'':{width}}  -> {finding.remedy}")
    return "\n".join(lines)


def merged(by_node: Sequence[tuple[str, Sequence[Finding]]]) -> list[Finding]:
    """One row where nodes found the same; else a row for each thing found, with its nodes, failures first."""
    rows: dict[str, dict[tuple[str, Status, str, str], list[str]]] = {}
    for node, findings in by_node:
        for finding in findings:
            key = (finding.check, finding.status, finding.text, finding.remedy)
            rows.setdefault(finding.check, {}).setdefault(key, []).append(node)
    nodes = {node for node, _ in by_node}
    result = []
    for found in rows.values():
        for key, at in sorted(found.items(), key=lambda item: _ORDER.index(item[0][1])):
            result.append(Finding(*key, where=() if set(at) == nodes else tuple(dict.fromkeys(at))))
    return result


def _where(finding: Finding) -> str:
    return f" [{few(finding.where)}]" if finding.where else ""
