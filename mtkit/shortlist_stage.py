"""Makes the shortlist of a run's model from its training shards, and measures on the validation set what it costs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mtkit.data.corpus import read_side
from mtkit.data.lexicon import learn
from mtkit.data.progress import bar
from mtkit.data.report import REPORT_FILE, Report
from mtkit.data.shards import Shard, open_shard
from mtkit.errors import DataError, ModelError
from mtkit.folders import SHORTLIST_FILE, RunFolder, find_model
from mtkit.recipe import Recipe
from mtkit.shortlist import Shortlist
from mtkit.stages import run_folder
from mtkit.text.tokenizer import Tokenizers
from mtkit.translator import Translator


@dataclass(frozen=True, slots=True)
class Size:
    """How long lists are: targets a source token, most frequent targets in all; and what they are counted from."""

    per_token: int = 100
    frequent: int = 100
    iterations: int = 5
    max_pairs: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Recall:
    """How much of the references the union of their own sentence's lists holds; `listed` sums the unions up."""

    tokens: int
    covered_tokens: int
    sentences: int
    covered_sentences: int
    listed: int

    def render(self, vocabulary: int) -> str:
        """In words, with shares."""
        return (
            f"recall on {self.sentences:,} validation pairs: {_share(self.covered_tokens, self.tokens)} of "
            f"{self.tokens:,} reference tokens, all of them in {_share(self.covered_sentences, self.sentences)} of the "
            f"sentences; a sentence has {self.listed / self.sentences:,.0f} of {vocabulary:,} target tokens in the mean"
        )


def make_shortlist(recipe: Recipe, size: Size) -> tuple[Path, Shortlist]:
    """Count the run's training shards, and write the shortlist into its model folder; returns where, and what.

    Raises ModelError when there is no model, or there are no shards of its tokenizer.
    """
    run = run_folder(recipe)
    _, tokenizers = _model_of(run)
    shards = _shards(run, tokenizers, "train")
    pairs = sum(map(len, shards))
    stride = max(1, -(-pairs // size.max_pairs))
    with bar("counting", (size.iterations + 1) * -(-pairs // stride)) as progress:
        lexicon = learn(
            shards,
            (tokenizers.source.size, tokenizers.target.size),
            size.iterations,
            size.max_pairs,
            tick=progress.update,
        )
    shortlist = Shortlist.of(
        lexicon.best(size.per_token), lexicon.frequent(size.frequent), tokenizers, size.per_token, size.frequent
    )
    path = run.model / SHORTLIST_FILE
    shortlist.save(path)
    return path, shortlist


def validation_recall(recipe: Recipe, shortlist: Shortlist) -> Recall | None:
    """The recall on all validation pairs of the shards; None where the recipe has none. Raises as `make_shortlist`."""
    run = run_folder(recipe)
    tokens = covered = sentences = whole = listed = 0
    for source, target in _pairs(_shards(run, _model_of(run)[1], "valid")):
        union = set(shortlist.union([source]).tolist())
        hits = sum(token in union for token in target)
        tokens, covered, listed = tokens + len(target), covered + hits, listed + len(union)
        sentences, whole = sentences + 1, whole + (hits == len(target))
    return Recall(tokens, covered, sentences, whole, listed) if sentences else None


def changed_lines(recipe: Recipe, most: int) -> tuple[int, int]:
    """How many of the first validation lines, at most so many, are translated otherwise with the model's shortlist.

    Returns these, and how many lines were translated, by the recipe's search. Raises as `Translator.load`, and
    DataError where a corpus is missing.
    """
    model = run_folder(recipe).model
    with_it, without = Translator.load(model, shortlist=True), Translator.load(model)
    changed = lines = 0
    for corpus in recipe.data.valid:
        sources = list(islice(read_side(corpus, Path(recipe.data.root), "source"), most - lines))
        pairs = zip(
            with_it.translate_stream(sources, recipe.search, tags=corpus.tags),
            without.translate_stream(sources, recipe.search, tags=corpus.tags),
            strict=True,
        )
        with bar("translating", len(sources), " lines") as progress:
            for one, other in pairs:
                changed += one.text != other.text
                progress.update()
        lines += len(sources)
    return changed, lines


def _model_of(run: RunFolder) -> tuple[Path, Tokenizers]:
    """Where the run's model is, and its tokenizers. Raises ModelError when there is none."""
    if not run.model.is_dir():
        raise ModelError(f"{run.model}: no such folder, the run has no model yet", "make it with: mtkit run RECIPE")
    _, home = find_model(run.model)
    return home, Tokenizers.load(home)


def _shards(run: RunFolder, tokenizers: Tokenizers, part: str) -> list[Shard]:
    """The shards of a part, "train" or "valid". Raises ModelError when there are none of this tokenizer."""
    try:
        report = Report.load(run.shards)
    except DataError as error:
        raise ModelError(error.message, "make the shards with: mtkit binarize RECIPE") from None
    if report.tokenizer_sha256 != tokenizers.sha256:
        raise ModelError(
            f"{run.shards / REPORT_FILE} and {run.model} do not belong together: the shards were made with the "
            f"tokenizer with SHA-256 {report.tokenizer_sha256}, the model's has {tokenizers.sha256}",
            "average the run's newest checkpoints, or make the shards again",
        )
    rows = [row for row in report.corpora if row.part == part]
    return [open_shard(run.shards / shard.file) for row in rows for shard in row.shards]


def _pairs(shards: Iterable[Shard]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield all pairs as ids of source and target."""
    for shard in shards:
        for index in range(len(shard)):
            yield shard.source(index).tolist(), shard.target(index).tolist()


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.2f} %"
