"""Facts about corpora to findings: what is an error, what a warning, and what to do about each."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from mtkit.check.examine import KINDS
from mtkit.check.facts import LONG_CHARACTERS, LONG_TIMES, RATIO_TIMES, CorpusFacts, Repeats, Side
from mtkit.check.findings import Finding, Place, error, warning
from mtkit.check.leaks import FORMS, WHATS, Leak
from mtkit.check.reading import paths_of
from mtkit.check.scripts import expected_scripts, told
from mtkit.check.slips import told as slips_told
from mtkit.lines import Occurrences
from mtkit.sections.data import Filters

_MANY_IDENTICAL = 0.005  # names and numbers are the same in two languages; more than that is untranslated text
_MANY_REPEATED = 0.2  # short sentences have several translations
_UNCORRELATED, _ENOUGH_LINES = 0.1, 500
_REMEDIES = {
    "crlf": "nothing: mtkit reads CRLF as LF; for other tools: sed -i 's/\\r$//' FILE",
    "control": "mtkit reads them as spaces; see how the file was made, or remove them",
    "replacement": "go back to the text before it was converted, or leave these lines out",
    "mojibake": "turn them back, for example with: iconv -f utf-8 -t windows-1252, or leave these lines out",
    "script": "leave these lines out; or correct the language code, where it is not this language at all",
    "tags": "remove the tags, or list those that should be translated as they are in tokenizer.user_defined_symbols",
    "entities": "replace them by their characters, for example with: python -c 'import sys, html; "
    "sys.stdout.writelines(html.unescape(line) for line in sys.stdin)' < OLD > NEW",
    "markup": "remove the markup",
    "tokenized": "train on plain text, as it is to be translated: mtkit has its own tokenizer",
}


def judge(facts: CorpusFacts, languages: tuple[str | None, str | None], filters: Filters | None) -> list[Finding]:
    """What is to be said about one corpus by itself. `filters` None: it is not filtered."""
    if facts.error is not None:
        return [error("file", facts.name, facts.error.message, facts.error.hint or "check the file")]
    found = _errors(facts)
    for name, side, language in zip(("source", "target"), (facts.source, facts.target), languages, strict=True):
        found += _of_side(facts, name, side, language, filters)
    return found + _of_pairs(facts, filters)


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / max(1, whole):.2f} %)"


def _places(facts: CorpusFacts, tally: Occurrences, side: str | None = None) -> list[Place]:
    return [Place(facts, line, side) for line in tally.lines]


def _lines(count: int) -> str:
    return f"{count:,} line{'s' if count != 1 else ''}"


def _paths(facts: CorpusFacts) -> list[Path]:
    paths = paths_of(facts.corpus, facts.root)
    return list(paths) if len(paths) == 2 else [paths[0], paths[0]]


def _errors(facts: CorpusFacts) -> list[Finding]:
    """What training would refuse."""
    found = []
    paths = _paths(facts)
    for name, side, path in zip(("source", "target"), (facts.source, facts.target), paths, strict=True):
        tally = side.tallies.get("bad_utf8")
        if tally:
            message = f"{path}:{tally.lines[0]}: {_lines(tally.count)} with bytes that are not UTF-8"
            encoding = "utf-16" if side.count("utf16") else "latin1"
            remedy = f"convert the file, for example with: iconv -f {encoding} -t utf-8 OLD > NEW"
            found.append(error("bad_utf8", facts.name, message, remedy, tally.count, _places(facts, tally, name)))
    if facts.columns.count:
        message = (
            f"{paths[0]}:{facts.columns.lines[0]}: {_lines(facts.columns.count)} with too few tab-separated columns"
        )
        remedy = "check source_column and target_column, and that columns are separated by tabs"
        found.append(error("columns", facts.name, message, remedy, facts.columns.count, _places(facts, facts.columns)))
    source, target = facts.source.lines, facts.target.lines
    if not source and not target:
        remedy = "check data.root and the file's name"
        found.append(error("no_lines", facts.name, f"{' and '.join(map(str, dict.fromkeys(paths)))}: no line", remedy))
    elif source != target and facts.whole:
        slips = slips_told(facts.slips) or "lengths do not tell where"
        message = f"{paths[0]} has {_lines(source)}, {paths[1]} has {_lines(target)}; {slips}"
        remedy = (
            "find the line that is missing or too much near there; line n of one file translates line n of the other"
        )
        places = [Place(facts, slip.first_line) for slip in facts.slips if slip.first_line <= facts.pairs]
        found.append(error("line_counts", facts.name, message, remedy, abs(source - target), places))
    return found


def _of_side(facts: CorpusFacts, name: str, side: Side, language: str | None, filters: Filters | None) -> list[Finding]:
    """Warnings about one side."""
    found = []
    which = f"{facts.name}, {name}"
    for kind, remedy in _REMEDIES.items():
        tally = side.tallies.get(kind)
        if tally is None:
            continue
        what = KINDS[kind]
        if kind == "script":
            what = (
                f"letters mostly of another script than {told(expected_scripts(language) or ())}, which is {language}'s"
            )
        elif kind == "crlf" and tally.count < side.lines:
            what = "CRLF line ends, the others LF: parts of the file come from different systems"
        message = f"{_share(tally.count, side.lines)} lines with {what}"
        places = [] if kind == "crlf" else _places(facts, tally, name)
        found.append(warning(kind, which, message, remedy, tally.count, places))
    blank = side.count("empty") + side.count("blank")
    if blank:
        tally = Occurrences(
            blank,
            sorted(side.tallies.get("empty", Occurrences()).lines + side.tallies.get("blank", Occurrences()).lines),
        )
        message = f"{_lines(blank)} without text: {side.count('empty'):,} empty, {side.count('blank'):,} of white space"
        message += f"; first line {tally.lines[0]:,}"
        remedy = "training leaves such pairs out" if filters else "each is still translated and scored: leave it out"
        found.append(warning("blank", which, message, remedy, blank))
    long = facts.long_source if name == "source" else facts.long_target
    if long.count:
        message = (
            f"{_lines(long.count)} of more than {LONG_CHARACTERS} characters and {LONG_TIMES} times the median length; "
            f"the longest has {int(side.characters.max()):,} characters"
        )
        remedy = "see whether several sentences were joined; filters.max_length leaves long pairs out of training"
        found.append(warning("long", which, message, remedy, long.count, _places(facts, long, name)))
    return found


def _of_pairs(facts: CorpusFacts, filters: Filters | None) -> list[Finding]:
    """Warnings about source and target together."""
    found = []
    name, pairs = facts.name, facts.pairs
    if facts.slips and facts.source.lines == facts.target.lines:
        message = f"the two sides seem to have slipped against each other: {slips_told(facts.slips)}"
        remedy = "compare the lines around there: one side has a line too many or too few, made up for later"
        places = [Place(facts, slip.first_line) for slip in facts.slips]
        found.append(warning("slip", name, message, remedy, len(facts.slips), places))
    elif facts.correlation < _UNCORRELATED and pairs >= _ENOUGH_LINES and facts.source.lines == facts.target.lines:
        message = (
            f"the lengths of source and target have nothing to do with each other (correlation {facts.correlation:.2f})"
        )
        remedy = "see whether the two files are translations of each other, line by line"
        found.append(warning("unrelated", name, message, remedy))
    if facts.half_blank.count:
        message = f"{_share(facts.half_blank.count, pairs)} pairs have text on one side only"
        remedy = "training leaves them out; translate them, or remove them" if filters else "translate or remove them"
        found.append(
            warning("half_blank", name, message, remedy, facts.half_blank.count, _places(facts, facts.half_blank))
        )
    if facts.identical.count > _MANY_IDENTICAL * pairs and not (filters and filters.drop_identical):
        message = f"{_share(facts.identical.count, pairs)} pairs whose target is the source"
        remedy = "filters.drop_identical: true leaves them out" if filters else "see whether they were translated"
        found.append(
            warning("identical", name, message, remedy, facts.identical.count, _places(facts, facts.identical))
        )
    if facts.ratio.count:
        message = (
            f"{_share(facts.ratio.count, pairs)} pairs whose lengths do not match: more than {RATIO_TIMES} times off "
            f"the corpus's {facts.ratio_of_lengths:.2f} target characters a source character, and far beyond its spread"
        )
        remedy = "such pairs are seldom translations; filters.max_ratio leaves them out" if filters else "look at them"
        found.append(warning("ratio", name, message, remedy, facts.ratio.count, _places(facts, facts.ratio)))
    return found + _repetitions(facts, filters)


def _repetitions(facts: CorpusFacts, filters: Filters | None) -> list[Finding]:
    found = []
    duplicates, sources = facts.duplicates, facts.repeated_sources
    if duplicates and duplicates.count and not (filters and filters.drop_duplicates):
        message = f"{_share(duplicates.count, facts.pairs)} pairs repeat an earlier one"
        remedy = "filters.drop_duplicates: true keeps the first" if filters else "each counts again in the score"
        found.append(warning("duplicates", facts.name, message, remedy, duplicates.count, _repeated(facts, duplicates)))
    if sources and sources.count > _MANY_REPEATED * facts.pairs:
        message = f"{_share(sources.count, facts.pairs)} pairs have the source of an earlier one"
        remedy = "see whether the corpus was put together from overlapping parts"
        found.append(warning("repeated_sources", facts.name, message, remedy, sources.count, _repeated(facts, sources)))
    return found


def _repeated(facts: CorpusFacts, repeats: Repeats) -> list[Place]:
    return [Place(facts, line, None, f"as line {first}") for line, first in repeats.examples]


def judge_leaks(leaks: Sequence[Leak], corpora: Sequence[CorpusFacts]) -> list[Finding]:
    """One warning for each held-out corpus of which something occurs in training."""
    found = []
    for facts in dict.fromkeys(leak.held_out.name for leak in leaks):
        own = {(leak.what, leak.form): leak for leak in leaks if leak.held_out.name == facts}
        if not any(leak.count for leak in own.values()):
            continue
        held_out = own["pair", "exact"].held_out
        counts = "; ".join(
            f"{what}s {own[what, 'exact'].count:,} exact, {own[what, 'loose'].count:,} but for case and punctuation"
            for what in ("pair", "source", "target")
            if own[what, "loose"].count or own[what, "exact"].count
        )
        message = f"of its {held_out.pairs:,} sentences, these occur in training: {counts}"
        remedy = "leave these lines out of training (or out of this set): scores on them measure memory"
        places: dict[int, Place] = {}
        for what, form in itertools.product(WHATS, FORMS):
            for one in own[what, form].examples:
                where = f"{what}, {'exact' if form == 'exact' else 'normalised'}, in {corpora[one.train_corpus].name}"
                places.setdefault(one.line, Place(held_out, one.line, None, f"{where} line {one.train_line}"))
        largest = max(leak.count for leak in own.values())
        found.append(warning("leak", held_out.name, message, remedy, largest, list(places.values())[:5]))
    return found
