"""The report of a check for people to read."""

from collections.abc import Sequence

from mtkit.check.facts import CorpusFacts, Lengths
from mtkit.check.findings import Finding
from mtkit.check.report import Report
from mtkit.figures import size


def render(report: Report) -> str:
    """The report as text: what was counted, then errors and warnings, numbered."""
    lines = [report.subject, ""]
    lines += _corpora(report)
    lines += _tokens(report)
    lines += _run(report)
    lines += [f"not looked at: {reason}" for reason in report.skipped]
    for kind, findings in (("error", report.errors), ("warning", report.warnings)):
        for number, finding in enumerate(findings, 1):
            lines += ["", *_finding(f"{kind} {number}", finding)]
    counts = [_count(len(report.errors), "error"), _count(len(report.warnings), "warning")]
    return "\n".join([*lines, "", ", ".join(counts)])


def _count(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'s' if count != 1 else ''}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned lines, the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / max(1, whole):.2f} %"


def _names(report: Report) -> tuple[str, str]:
    source, target = report.languages
    return source or "source", target or "target"


def _corpora(report: Report) -> list[str]:
    readable = [facts for facts in report.corpora if facts.error is None]
    if not readable:
        return []
    source, target = _names(report)
    both = f"{source} / {target}"
    head = (
        "corpus",
        "pairs",
        f"words {both}",
        f"median characters {both}",
        "99 %",
        "longest",
        "repeated pairs",
        "sources",
    )
    return _table([head, *(_corpus(facts) for facts in readable)])


def _corpus(facts: CorpusFacts) -> tuple[str, ...]:
    ours, theirs = Lengths.of(facts.source.characters), Lengths.of(facts.target.characters)
    repeats = (facts.duplicates, facts.repeated_sources)
    return (
        facts.name,
        f"{facts.pairs:,}",
        f"{facts.source.words:,} / {facts.target.words:,}",
        f"{ours.median:.0f} / {theirs.median:.0f}",
        f"{ours.percentile_99:.0f} / {theirs.percentile_99:.0f}",
        f"{ours.longest:,} / {theirs.longest:,}",
        *(f"{repeat.count if repeat else 0:,}" for repeat in repeats),
    )


def _tokens(report: Report) -> list[str]:
    if report.choice is None:
        return []
    tokenizers = report.choice.tokenizers
    sizes = f"{tokenizers.source.size:,} entries"
    if not tokenizers.joint:
        sizes = f"{tokenizers.source.size:,} and {tokenizers.target.size:,} entries"
    lines = ["", f"tokenizer: {report.choice.origin}; {sizes}"]
    if report.choice.stands_in:
        lines.append("the run's own will differ a little: mtkit tokenizer RECIPE makes it, and then this uses it")
    head = ("tokens of", "looked at", "kept", "tokens", "a word", "characters a token", "unknown")
    rows = [head]
    for one in report.tokens:
        sides = (one.source, one.target)
        words = [
            f"{side.tokens / max(1, side.words):.2f}" if report.spaced(number) else "-"
            for number, side in enumerate(sides)
        ]
        rows.append(
            (
                one.facts.name,
                f"{one.pairs:,} of {one.facts.pairs:,}",
                _share(one.kept, one.pairs),
                " / ".join(f"{side.tokens:,}" for side in sides),
                " / ".join(words),
                " / ".join(f"{side.characters / max(1, side.tokens):.2f}" for side in sides),
                " / ".join(_share(side.unknown, side.tokens) for side in sides),
            )
        )
    lines += _table(rows)
    for one in report.tokens:
        for reason, drop in one.dropped.items():
            lines.append(f"left out of {one.facts.name}: {drop.count:,} ({_share(drop.count, one.pairs)}) {reason}")
    return lines


def _run(report: Report) -> list[str]:
    lines = []
    plan = report.batches
    if plan is not None:
        lines += [
            "",
            f"batches: {plan.batches:,} an epoch of {plan.pairs:,} pairs{', about' if plan.sampled else ''}; "
            f"{100 * plan.padding:.1f} % padding; {plan.pairs_per_batch:.1f} pairs a batch, "
            f"{plan.target_tokens_per_update:,.0f} target tokens an update, in one process",
            f"to the end: {plan.updates_to_the_end:,} updates of {plan.updates:,} an epoch: "
            f"{plan.epochs_to_the_end:.2f} epochs",
        ]
    if report.parameters is not None:
        lines.append(f"model: {report.parameters:,} parameters")
    if report.memory is not None:
        parts = {
            "weights": report.memory.weights,
            "gradients": report.memory.gradients,
            "optimizer": report.memory.optimizer,
            "moving average": report.memory.average,
            "largest batch": report.memory.activations,
            "loss": report.memory.loss,
            "process": report.memory.process,
        }
        told = ", ".join(f"{name} {size(count)}" for name, count in parts.items() if count)
        free = report.machine.memory if report.machine else None
        rest = f"; {size(free)} are free" if free is not None else ""
        lines.append(f"memory of training: about {size(report.memory.total)} ({told}){rest}")
    if report.disk is not None:
        disk = report.disk
        lines.append(
            f"disk: about {size(disk.total)} (shards {size(disk.shards)}, up to {disk.checkpoints + 1} checkpoints of "
            f"{size(disk.checkpoint)}, model {size(disk.model)}); {size(disk.free)} are free"
        )
    if report.machine is not None:
        lines.append(f"machine: {report.machine.device}, {report.machine.precision}; visible: {report.machine.visible}")
    return lines


def _finding(title: str, finding: Finding) -> list[str]:
    lines = [f"{title} ({finding.kind}), {finding.where}: {finding.message}", f"  to do: {finding.remedy}"]
    for example in finding.examples:
        remark = f" ({example.remark})" if example.remark else ""
        lines.append(f"    line {example.line}{remark}: {example.text}")
    return lines
