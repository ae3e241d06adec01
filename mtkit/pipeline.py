"""The stages of a run: what each reads and writes, and which are up to date.

fetch      recipe.data.downloads             -> data.root
tokenizer  training text                     -> RUN/tokenizer*.model           (mtkit.stages)
binarize   corpora, tokenizer                -> RUN/shards/                    (mtkit.stages)
train      shards                            -> RUN/checkpoints/, RUN/metrics.jsonl
average    checkpoints                       -> RUN/model/
test       RUN/model/, test corpora          -> RUN/test/*.txt, RUN/scores.json
"""

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mtkit.average import check_alike, mean, select
from mtkit.checkpoint import save_model
from mtkit.check.run import preflight
from mtkit.data.corpus import check_files, read_pairs
from mtkit.data.fetch import fetch
from mtkit.data.report import Report
from mtkit.errors import DataError, ModelError, MtkitError
from mtkit.evaluate import MetricScore, Scores, score
from mtkit.figures import duration
from mtkit.files import atomic_write, read_json, sha256_file, write_json
from mtkit.folders import RECIPE_FILE, WEIGHTS_FILE, RunFolder, check_checkpoint, read_lineage, read_scores
from mtkit.hygiene import doubts
from mtkit.lineage import corpus_hashes, corpus_names
from mtkit.metrics import check_setup
from mtkit.ranks import Ranks, joined, local_rank
from mtkit.recipe import Recipe
from mtkit.runtime import resolve_device
from mtkit.sections.data import Corpus
from mtkit.stages import done, ensure_shards, ensure_tokenizer, mark, run_folder, strike_off
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.board import check_board
from mtkit.training.resume import compare_recipe, locked
from mtkit.training.signals import orderly_end
from mtkit.training.trainer import Outcome, train_model
from mtkit.translator import Translator

log = logging.getLogger(__name__)


def clear(run: RunFolder) -> None:
    """Delete what training has left in a run folder, so that it starts anew; tokenizer, shards and metrics stay."""
    for file in (run.recipe, run.budget, run.scores):
        file.unlink(missing_ok=True)
    for folder in (run.checkpoints, run.model, run.test, run.tensorboard):
        if folder.is_dir():
            shutil.rmtree(folder)


def train(recipe: Recipe, *, fresh: bool = False) -> Outcome:
    """Train a recipe's model, making tokenizer and shards first where they are missing or stale.

    Continues from the newest checkpoint of the run folder; `fresh` deletes the run's checkpoints first.
    Returns how training ended. Raises MtkitError of many kinds, each with what to do.
    """
    device = resolve_device(recipe.training.device, local_rank())
    with orderly_end(), joined(device) as ranks, _locked_by_leader(run_folder(recipe), ranks):
        return _train(recipe, fresh, ranks)


@contextmanager
def _locked_by_leader(run: RunFolder, ranks: Ranks) -> Iterator[None]:
    """Rank 0 holds the lock of the run folder, for all ranks."""
    with ExitStack() as stack:
        ranks.lead(lambda: stack.enter_context(locked(run)))
        yield


def _train(recipe: Recipe, fresh: bool, ranks: Ranks) -> Outcome:
    if not ranks.leads:
        logging.getLogger("mtkit").setLevel(logging.ERROR)
    tokenizers = ranks.lead(lambda: _prepare(recipe, fresh))
    return train_model(recipe, tokenizers, ranks)


def _prepare(recipe: Recipe, fresh: bool) -> Tokenizers:
    """All that comes before training: checks, tokenizer, shards."""
    run = run_folder(recipe)
    if recipe.training.tensorboard:
        check_board()
    if fresh:
        clear(run)
    compare_recipe(run, recipe)
    if recipe.data.valid:
        check_setup(recipe.evaluation.model_copy(update={"metrics": ("bleu",)}), recipe.languages.target)
    if not run.steps():
        preflight(recipe)
    tokenizers = ensure_tokenizer(recipe)
    ensure_shards(recipe, tokenizers)
    return tokenizers


def average(run: RunFolder, how: str, count: int) -> list[int]:
    """Average checkpoints of a run into its model folder; returns their steps.

    Raises ModelError when there are none or one is damaged, UsageError when there are too few.
    """
    if not run.recipe.is_file():
        raise ModelError(f"{run.path}: is not a run folder, it has no recipe.yaml", "train first: mtkit train RECIPE")
    recipe = Recipe.load(run.recipe)
    folders = select(run, how, count, recipe.training.best_metric)
    check_alike(folders)
    states = [check_checkpoint(folder) for folder in folders]
    tokenizers = Tokenizers.load(run.path)
    if tokenizers.sha256 != states[0]["tokenizer_sha256"]:
        raise ModelError(
            f"{run.path}: its tokenizer is not the one that {folders[0].name} was trained with",
            "put the old tokenizer back, or train again: mtkit train RECIPE --fresh",
        )
    steps = [int(state["step"]) for state in states]
    names = ", ".join(map(str, steps))
    lineage = {
        "steps": steps,
        "checkpoints_sha256": [state["sha256"][WEIGHTS_FILE] for state in states],
        "scores": [read_scores(folder) for folder in folders],
        "target_tokens": states[-1]["train"]["target_tokens"],
        "seconds": states[-1]["train"]["seconds"],
        "recipe_sha256": recipe.sha256(),
        "corpora_sha256": _corpora_of(run),
    }
    if states[-1].get("initialized_from"):
        lineage["initialized_from"] = states[-1]["initialized_from"]
    if _same_model(run.model, recipe, tokenizers, lineage):
        log.info("model: up to date (steps %s)", names)
        return steps
    save_model(run.model, mean(folders), recipe, tokenizers, lineage)
    log.info("model: %s from steps %s", run.model, names)
    return steps


def _same_model(folder: Path, recipe: Recipe, tokenizers: Tokenizers, lineage: dict[str, Any]) -> bool:
    """Whether a model folder is whole, and what `save_model` would write there."""
    try:
        there = read_lineage(folder)
        hashes = {
            "weights_sha256": sha256_file(folder / WEIGHTS_FILE),
            "tokenizer_sha256": Tokenizers.load(folder).sha256,
        }
        same = hashes["tokenizer_sha256"] == tokenizers.sha256 and Recipe.load(folder / RECIPE_FILE) == recipe
        return same and there == {"format": there["format"], **lineage, **hashes}
    except (MtkitError, OSError):
        return False


def _corpora_of(run: RunFolder) -> dict[str, dict[str, str]]:
    """The hashes of the text that was binarized, by part and corpus."""
    rows = Report.load(run.shards).corpora
    return {f"{row.part} {row.corpus}": {"source": row.source_sha256, "target": row.target_sha256} for row in rows}


def score_tests(recipe: Recipe) -> dict[str, Scores]:
    """Translate every test corpus with RUN/model and score it; writes RUN/test/NAME.txt and RUN/scores.json.

    What is there is read back where model, test text, search and evaluation are the same as last time.
    """
    run = run_folder(recipe)
    weights_sha256 = sha256_file(run.model / WEIGHTS_FILE)
    inputs = {
        "weights_sha256": weights_sha256,
        "languages": recipe.languages.model_dump(mode="json"),
        "search": recipe.search.model_dump(mode="json"),
        "evaluation": recipe.evaluation.model_dump(mode="json"),
        "corpora": [corpus.model_dump(mode="json", exclude={"weight"}) for corpus in recipe.data.test],
        "files": corpus_hashes(recipe.data.test, Path(recipe.data.root)),
    }
    if done(run).get("test") == inputs and all(_output(run, corpus).is_file() for corpus in recipe.data.test):
        scores = _read_scores(run)
        if scores is not None:
            log.info("test: up to date")
            return scores
    strike_off(run, "test")
    translator = Translator.load(run.model, recipe.training.device)
    scores = {corpus.name: _score_test(run, recipe, translator, corpus) for corpus in recipe.data.test}
    tests = {name: figures.as_dict() for name, figures in scores.items()}
    write_json(run.scores, {"weights_sha256": weights_sha256, "tests": tests})
    mark(run, "test", inputs)
    return scores


def _output(run: RunFolder, corpus: Corpus) -> Path:
    return run.test / f"{corpus.name}.txt"


def _score_test(run: RunFolder, recipe: Recipe, translator: Translator, corpus: Corpus) -> Scores:
    """Translate one test corpus into its file under RUN/test, and score it."""
    pairs = list(read_pairs(corpus, Path(recipe.data.root)))
    began = time.perf_counter()
    stream = translator.translate_stream([pair.source for pair in pairs], recipe.search, tags=corpus.tags)
    hypotheses = [translation.text for translation in stream]
    log.info("test %s: %d sentences in %s", corpus.name, len(pairs), duration(time.perf_counter() - began))
    with atomic_write(_output(run, corpus)) as file:
        file.writelines(f"{line}\n" for line in hypotheses)
    references = [pair.target for pair in pairs]
    section, named = recipe.evaluation, [(f"test corpus {corpus.name}", references)]
    for doubt in doubts({str(_output(run, corpus)): hypotheses}, named, section.metrics):
        log.warning("%s", doubt)
    return score(hypotheses, [references], section, recipe.languages.target, resamples=section.resamples)


def _read_scores(run: RunFolder) -> dict[str, Scores] | None:
    """The scores of last time; None when the file is missing or damaged."""
    try:
        return {
            name: Scores(
                {metric: MetricScore(**values) for metric, values in row["metrics"].items()},
                row["sentences"],
                row["references"],
            )
            for name, row in read_json(run.scores)["tests"].items()
        }
    except (DataError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: cannot be read (%s); testing again", run.scores, error)
        return None


def fetch_missing(recipe: Recipe) -> None:
    """Download the recipe's public files where one of its corpora is not there."""
    root = Path(recipe.data.root)
    missing = [name for name in corpus_names(_all_corpora(recipe)) if not (root / name).exists()]
    if missing and recipe.data.downloads:
        fetch(recipe)
    elif recipe.data.downloads:
        log.info("fetch: all corpora are there")


def _all_corpora(recipe: Recipe) -> list[Corpus]:
    return [*recipe.data.train, *recipe.data.valid, *recipe.data.test]


def run(recipe: Recipe, *, fresh: bool = False) -> tuple[Outcome, dict[str, Scores]]:
    """All stages in order, skipping what is up to date; returns how training ended and the scores of each test corpus.

    When a signal stopped training, the stages after it are not done and there are no scores. With several ranks, all
    train, and the leading one does everything else.
    """
    folder = run_folder(recipe)
    device = resolve_device(recipe.training.device, local_rank())
    with orderly_end(), joined(device) as ranks:
        ranks.lead(lambda: _bring_corpora(recipe))
        with _locked_by_leader(folder, ranks):
            outcome = _train(recipe, fresh, ranks)
            if outcome.signal_number is not None:
                return outcome, {}
            return outcome, ranks.lead(lambda: _average_and_test(folder, recipe))


def _bring_corpora(recipe: Recipe) -> None:
    fetch_missing(recipe)
    check_files(_all_corpora(recipe), Path(recipe.data.root))


def _average_and_test(folder: RunFolder, recipe: Recipe) -> dict[str, Scores]:
    """The stages after training."""
    available = len(folder.steps())
    if recipe.average.checkpoints > available:
        log.warning(
            "average.checkpoints is %d, and %d are there; training.keep_last and training.keep_best decide",
            recipe.average.checkpoints,
            available,
        )
    average(folder, recipe.average.select, min(recipe.average.checkpoints, available))
    scores = score_tests(recipe)
    if not scores:
        log.info("test: the recipe has no test corpora")
    return scores
