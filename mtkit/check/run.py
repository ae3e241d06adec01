"""The check of a recipe, or of a pair of files: read, judge, encode, plan, and report."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mtkit.check.batches import measured_batching, plan_batches
from mtkit.check.facts import CorpusFacts
from mtkit.check.findings import Finding, Texts, error, fill_in, lines_of, warning
from mtkit.check.gather import corpora_of, gather
from mtkit.check.judge import judge, judge_leaks
from mtkit.check.machine import Machine
from mtkit.check.report import Report
from mtkit.check.run_files import check_run
from mtkit.check.size import Precision, activation_bytes, disk, memory, parameters
from mtkit.check.tokens import Choice, choose, draw_lines, encode_sample
from mtkit.errors import MtkitError, RecipeError
from mtkit.metrics import check_setup
from mtkit.recipe import Recipe
from mtkit.sections.data import Corpus
from mtkit.text.tokenizer import Tokenizers

log = logging.getLogger(__name__)

SAMPLE = 100_000
"""Training pairs that the tokenizer's part of a check looks at, unless told otherwise."""
_QUICK_BYTES = 4_000_000
_MANY_UNKNOWN = 0.005
_MANY_LOST = 0.1


@dataclass(frozen=True, slots=True)
class Options:
    """How to check: a tokenizer's folder, the sample of its part, processes, and who knows the machine."""

    tokenizer: Path | None = None
    sample: int = SAMPLE
    workers: int | None = None
    machine: Callable[[Recipe], Machine] | None = None


def check_recipe(recipe: Recipe, subject: str, options: Options) -> Report:
    """Check everything that a run of the recipe would meet. Writes nothing. Raises no error for what it finds."""
    root = Path(recipe.data.root)
    data = recipe.data
    corpora = corpora_of((("train", data.train), ("valid", data.valid), ("test", data.test)), root)
    languages = (recipe.languages.source, recipe.languages.target)
    report = Report(f"{subject}: {languages[0]} to {languages[1]}", languages, corpora)
    report.leaks = gather(corpora, languages, recipe.symbols(), options.workers)
    for facts in corpora:
        report.findings += judge(facts, languages, recipe.filters if facts.part == "train" else None)
    if recipe.data.downloads:
        _point_to_fetch(report.findings)
    report.findings += judge_leaks(report.leaks, corpora)
    report.findings += _settings(recipe)
    _tokens_and_batches(recipe, report, options)
    _sizes(recipe, report, options)
    return report


def check_pair(source: Path, target: Path, languages: tuple[str | None, str | None], options: Options) -> Report:
    """Check two files that should be translations of each other, line by line; tokens only with a given tokenizer."""
    facts = CorpusFacts("pair", Corpus(name="pair", source=str(source), target=str(target)), Path())
    report = Report(f"{source} and {target}", languages, [facts])
    gather([facts], languages, (), options.workers)
    report.findings += judge(facts, languages, None)
    lines = np.empty(0, np.int64)
    if options.tokenizer is not None and facts.usable:
        share = min(1.0, options.sample / max(1, facts.pairs))
        lines = draw_lines(facts, share, 1, 0)
    texts = Texts([(facts, lines), *lines_of(report.findings)])
    fill_in(report.findings, texts)
    if options.tokenizer is None:
        report.skipped.append("tokens: give the folder of a tokenizer with --tokenizer, or a recipe")
    elif facts.usable:
        try:
            _tokens_of_pair(report, facts, lines, texts, options.tokenizer)
        except MtkitError as problem:
            report.findings.append(_tokenizer_error(problem))
    return report


def _tokens_of_pair(report: Report, facts: CorpusFacts, lines: np.ndarray, texts: Texts, folder: Path) -> None:
    """The tokens of a pair of files, under no filter that a recipe would set. Changes the report."""
    tokenizers = Tokenizers.load(folder)
    languages = {"source": report.languages[0] or "xx", "target": report.languages[1] or "xx"}
    recipe = Recipe.model_validate({"languages": languages, "data": {"train": [facts.corpus.model_dump()]}})
    report.tokens = [encode_sample(facts, lines, texts, tokenizers, recipe)]
    report.choice = Choice(tokenizers, f"of {folder}", False)


def _tokenizer_error(problem: MtkitError) -> Finding:
    kind = "recipe" if isinstance(problem, RecipeError) else "tokenizer"
    return error(kind, "tokenizer", problem.message, problem.hint or "see the tokenizer section")


def _point_to_fetch(findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.kind == "file":
            finding.remedy += "; `mtkit fetch RECIPE` downloads what the recipe lists"


def _settings(recipe: Recipe) -> list[Finding]:
    """Findings about the recipe itself and its run folder."""
    found = []
    try:
        found += check_run(recipe)
    except MtkitError as problem:
        found.append(error("run_dir", "run_dir", problem.message, problem.hint or "choose another run_dir"))
    try:
        check_setup(recipe.evaluation, recipe.languages.target)
    except MtkitError as problem:
        remedy = problem.hint or "choose another evaluation.tokenize"
        found.append(error("evaluation", "evaluation", problem.message, remedy))
    if not recipe.data.valid:
        message = "there is no validation corpus: nobody will see when the model stops getting better"
        remedy = "hold out some hundred pairs that are not in training, as data.valid"
        found.append(warning("no_valid", "data", message, remedy))
    return found


def _tokens_and_batches(recipe: Recipe, report: Report, options: Options) -> None:
    """The tokenizer's part; fetches all texts that the report shows. Changes the report."""
    usable = [facts for facts in report.corpora if facts.usable]
    train = [facts for facts in usable if facts.part == "train"]
    ready = len(train) == len(recipe.data.train)
    wanted: list[tuple[CorpusFacts, np.ndarray]] = []
    total = sum(facts.pairs for facts in train)
    if ready:
        for number, facts in enumerate(usable):
            of_all = total if facts.part == "train" else facts.pairs
            wanted.append((facts, draw_lines(facts, min(1.0, options.sample / of_all), recipe.tokenizer.seed, number)))
    texts = Texts([*wanted, *lines_of(report.findings)])
    fill_in(report.findings, texts)
    if not ready:
        report.skipped.append("tokens, batches, memory and disk: the training corpora have errors")
        return
    report.sample = options.sample
    try:
        of_training = [pair for facts, lines in wanted if facts.part == "train" for pair in texts.pairs(facts, lines)]
        report.choice = choose(recipe, options.tokenizer, of_training, total <= options.sample)
        del of_training
        for facts, lines in wanted:
            report.tokens.append(encode_sample(facts, lines, texts, report.choice.tokenizers, recipe))
    except MtkitError as problem:
        report.findings.append(_tokenizer_error(problem))
        return
    report.findings += _judge_tokens(report)
    in_training = [one for one in report.tokens if one.facts.part == "train"]
    batching = measured_batching(recipe)
    if batching is None:
        reason = "batches and memory: batching.max_tokens: auto is measured when training begins"
        report.skipped.append(reason)
        return
    report.batches = plan_batches(recipe.model_copy(update={"batching": batching}), in_training)
    plan = report.batches
    if plan is not None and plan.updates_to_the_end < plan.updates:
        message = f"training ends after {plan.updates_to_the_end:,} updates, before it has seen every pair once"
        message += f" ({plan.updates:,} updates an epoch)"
        remedy = "raise training.max_steps (or max_epochs), or batching.max_tokens"
        report.findings.append(warning("short", "training", message, remedy))


def _judge_tokens(report: Report) -> list[Finding]:
    """Findings about unknown tokens and what the filters take."""
    found = []
    for one in report.tokens:
        name = one.facts.name
        for which, side in (("source", one.source), ("target", one.target)):
            if side.unknown > _MANY_UNKNOWN * side.tokens:
                message = f"{100 * side.unknown / side.tokens:.2f} % of the tokens are unknown"
                remedy = "raise tokenizer.character_coverage or vocab_size, or set tokenizer.byte_fallback: true"
                found.append(warning("unknown", f"{name}, {which}", message, remedy, side.unknown))
        lost = one.pairs - one.kept
        reasons = ", ".join(f"{reason} {drop.count:,}" for reason, drop in one.dropped.items())
        if not one.kept and one.scale == 1:
            message = f"none of its {one.pairs:,} pairs is left: {reasons}"
            found.append(error("filters", name, message, "check the files and the filters section", lost))
        elif one.facts.part == "train" and lost > _MANY_LOST * one.pairs:
            message = f"the filters leave out {100 * lost / one.pairs:.1f} % of the pairs: {reasons}"
            found.append(warning("filters", name, message, "check the filters section against the lengths above", lost))
    return found


def _sizes(recipe: Recipe, report: Report, options: Options) -> None:
    """Parameters, the machine, memory and disk. Changes the report."""
    if report.choice is None:
        sizes = (recipe.tokenizer.vocab_size, recipe.tokenizer.vocab_size)
    else:
        sizes = (report.choice.tokenizers.source.size, report.choice.tokenizers.target.size)
        if report.choice.stands_in:
            sizes = (recipe.tokenizer.vocab_size, recipe.tokenizer.vocab_size)
    report.parameters = parameters(recipe.model, *sizes)
    if options.machine is not None:
        try:
            report.machine = options.machine(recipe)
        except MtkitError as problem:
            report.findings.append(error("device", "training", problem.message, problem.hint or "choose another"))
        else:
            if report.machine.caution:
                remedy = "training.precision: auto takes what the hardware has"
                report.findings.append(warning("precision", "training", report.machine.caution, remedy))
    if report.choice is None or not report.tokens:
        return
    plan = report.batches
    if plan is not None:
        how = report.machine.how if report.machine else Precision()
        activations = activation_bytes(recipe.model, plan.rows, plan.longest_source, plan.longest_target, how)
        report.memory = memory(recipe, report.parameters, sizes[1], activations, how)
    train = [one for one in report.tokens if one.facts.part != "test"]
    pairs = sum(one.kept * one.scale for one in train)
    tokens = sum((one.source.tokens + one.target.tokens) * one.scale for one in train)
    report.disk = disk(recipe, report.parameters, max(sizes), pairs, tokens)
    free = report.machine.memory if report.machine else None
    if free is not None and report.memory is not None and report.memory.total > free:
        message = f"training takes about {report.memory.total / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
        remedy = "lower batching.max_tokens and raise training.accumulate as much, or choose a smaller model"
        report.findings.append(warning("memory", "batching", message, remedy))
    if report.disk.total > report.disk.free:
        message = f"the run takes about {report.disk.total / 1e9:.1f} GB on the disk, {report.disk.free / 1e9:.1f} GB "
        message += "are free"
        remedy = "make room, choose another run_dir, or lower training.keep_last"
        report.findings.append(warning("disk", "run_dir", message, remedy))


def preflight(recipe: Recipe) -> list[Finding]:
    """The quick part of a check, for the start of training: the first megabytes of every corpus, in a few seconds.

    Logs its warnings, and returns them. What stands in the way is left to the stages, which read everything.
    """
    data = recipe.data
    corpora = corpora_of((("train", data.train), ("valid", data.valid), ("test", data.test)), Path(data.root))
    languages = (recipe.languages.source, recipe.languages.target)
    leaks = gather(corpora, languages, recipe.symbols(), 1, _QUICK_BYTES // len(data.train))
    found: list[Finding] = []
    for facts in corpora:
        found += judge(facts, languages, recipe.filters if facts.part == "train" else None)
    found = [one for one in (*found, *judge_leaks(leaks, corpora)) if one.severity == "warning"]
    part = [facts.name for facts in corpora if not facts.whole]
    for number, one in enumerate(found, 1):
        log.warning("%d. %s: %s\n  to do: %s", number, one.where, one.message, one.remedy)
    if found:
        seen = f" (of {', '.join(part)} only the beginning was looked at)" if part else ""
        log.info("%d warning%s%s; mtkit check tells more", len(found), "s" if len(found) > 1 else "", seen)
    return found
