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

from mtkit.check.run import preflight
from mtkit.data.corpus import check_files, read_pairs
from mtkit.data.fetch import fetch
from mtkit.errors import DataError, UsageError
from mtkit.evaluate import MetricScore, Scores, score
from mtkit.figures import duration
from mtkit.files import atomic_write, read_json, sha256_file, write_json
from mtkit.folders import RunFolder
from mtkit.hygiene import doubts
from mtkit.lineage import corpus_hashes
from mtkit.metrics import check_setup
from mtkit.model_stage import average
from mtkit.ranks import Ranks, joined, local_rank
from mtkit.reasons import all_corpora, inputs_of_test, missing_files, output_of, reasons, why_test
from mtkit.recipe import Recipe
from mtkit.runtime import resolve_device
from mtkit.sections.data import Corpus
from mtkit.stages import (
    STAGES,
    Selection,
    ensure_shards,
    ensure_tokenizer,
    make_shards,
    make_tokenizer,
    mark,
    run_folder,
    strike_off,
)
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
        outcome = _train(recipe, fresh, ranks, Selection())
    assert outcome is not None
    return outcome


@contextmanager
def _locked_by_leader(run: RunFolder, ranks: Ranks) -> Iterator[None]:
    """Rank 0 holds the lock of the run folder, for all ranks. When nothing was made in a new one, it goes again."""
    created = not run.path.exists()
    try:
        with ExitStack() as stack:
            ranks.lead(lambda: stack.enter_context(locked(run)))
            yield
    except BaseException:
        lock = run.path / "lock"
        if ranks.leads and created and run.path.is_dir() and [*run.path.iterdir()] == [lock]:
            lock.unlink()
            run.path.rmdir()
        raise


def _train(recipe: Recipe, fresh: bool, ranks: Ranks, selection: Selection) -> Outcome | None:
    """Training and what comes before it, as far as selected."""
    if not ranks.leads:
        logging.getLogger("mtkit").setLevel(logging.ERROR)
    tokenizers = ranks.lead(lambda: _prepare(recipe, fresh, selection))
    return train_model(recipe, tokenizers, ranks) if selection.has("train") else None


def _prepare(recipe: Recipe, fresh: bool, selection: Selection) -> Tokenizers:
    """All that comes before training: checks, tokenizer, shards."""
    run = run_folder(recipe)
    if recipe.training.tensorboard:
        check_board()
    if fresh:
        clear(run)
    compare_recipe(run, recipe)
    if not run.steps() and not missing_files(recipe):
        preflight(recipe)
    if recipe.data.valid:
        check_setup(recipe.evaluation.model_copy(update={"metrics": ("bleu",)}), recipe.languages.target)
    tokenizers = make_tokenizer(recipe) if selection.forces("tokenizer") else ensure_tokenizer(recipe)
    if selection.forces("binarize"):
        log.info("%s", make_shards(recipe, tokenizers).render())
    elif selection.last != "tokenizer":
        ensure_shards(recipe, tokenizers)
    return tokenizers


def score_tests(recipe: Recipe, *, again: bool = False) -> dict[str, Scores]:
    """Translate every test corpus with RUN/model and score it; writes RUN/test/NAME.txt and RUN/scores.json.

    What is there is read back where nothing that it comes from has changed, unless it is to be done `again`.
    """
    run = run_folder(recipe)
    if not again and why_test(recipe) is None:
        scores = _read_scores(run)
        if scores is not None:
            log.info("test: up to date")
            return scores
    inputs = inputs_of_test(recipe)
    strike_off(run, "test")
    translator = Translator.load(run.model, recipe.training.device)
    scores = {corpus.name: _score_test(run, recipe, translator, corpus) for corpus in recipe.data.test}
    tests = {
        corpus.name: {**scores[corpus.name].as_dict(), "sha256": _hashes_of_test(run, recipe, corpus)}
        for corpus in recipe.data.test
    }
    write_json(run.scores, {"weights_sha256": inputs["weights_sha256"], "tests": tests})
    mark(run, "test", inputs, [run.scores, *(output_of(run, corpus) for corpus in recipe.data.test)])
    return scores


def _hashes_of_test(run: RunFolder, recipe: Recipe, corpus: Corpus) -> dict[str, str]:
    """The files that a test score compares, by their names: the translation, and the corpus as the recipe names it."""
    output = output_of(run, corpus)
    own = {output.relative_to(run.path).as_posix(): sha256_file(output)}
    return own | corpus_hashes([corpus], Path(recipe.data.root))


def _score_test(run: RunFolder, recipe: Recipe, translator: Translator, corpus: Corpus) -> Scores:
    """Translate one test corpus into its file under RUN/test, and score it."""
    pairs = list(read_pairs(corpus, Path(recipe.data.root)))
    began = time.perf_counter()
    stream = translator.translate_stream([pair.source for pair in pairs], recipe.search, tags=corpus.tags)
    hypotheses = [translation.text for translation in stream]
    log.info("test %s: %d sentences in %s", corpus.name, len(pairs), duration(time.perf_counter() - began))
    with atomic_write(output_of(run, corpus)) as file:
        file.writelines(f"{line}\n" for line in hypotheses)
    references = [pair.target for pair in pairs]
    section, named = recipe.evaluation, [(f"test corpus {corpus.name}", references)]
    for doubt in doubts({str(output_of(run, corpus)): hypotheses}, named, section.metrics):
        log.warning("%s", doubt)
    return score(hypotheses, [references], section, recipe.languages.target, resamples=section.resamples)


def _read_scores(run: RunFolder) -> dict[str, Scores] | None:
    """The scores of last time; None when the file is damaged."""
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
    if missing_files(recipe) and recipe.data.downloads:
        fetch(recipe)
    elif recipe.data.downloads:
        log.info("fetch: all corpora are there")


def run(
    recipe: Recipe, *, fresh: bool = False, selection: Selection | None = None
) -> tuple[Outcome | None, dict[str, Scores]]:
    """The stages in order, skipping what is up to date; returns how training ended and the scores of each test corpus.

    `fresh` deletes checkpoints, model and scores first; so does a `selection` that forces training. Stages before the
    first one selected have to be done: UsageError says what is wrong with them. The outcome is None when training is
    not among the stages. When a signal stopped it, the stages after it are not done and there are no scores. With
    several ranks, all train, and the leading one does everything else.
    """
    chosen = selection or Selection()
    folder = run_folder(recipe)
    device = resolve_device(recipe.training.device, local_rank())
    with orderly_end(), joined(device) as ranks:
        ranks.lead(lambda: _bring_corpora(recipe, chosen))
        ranks.lead(lambda: _refuse_stale(recipe, chosen))
        with _locked_by_leader(folder, ranks):
            outcome = None
            if chosen.has("tokenizer") or chosen.has("binarize") or chosen.has("train"):
                outcome = _train(recipe, fresh or chosen.forces("train"), ranks, chosen)
            if outcome is not None and outcome.signal_number is not None:
                return outcome, {}
            return outcome, ranks.lead(lambda: _average_and_test(folder, recipe, chosen))


def _refuse_stale(recipe: Recipe, selection: Selection) -> None:
    """Raise UsageError when a stage before the first one selected is not done. Training may be unfinished."""
    if selection.first == STAGES[0]:
        return
    for stage, reason in reasons(recipe):
        enough = stage == "train" and run_folder(recipe).steps()
        if selection.starts_after(stage) and reason is not None and not enough:
            raise UsageError(
                f"--from {selection.first}: the stage {stage} before it is not up to date: {reason}",
                f"start there: --from {stage}",
            )


def _bring_corpora(recipe: Recipe, selection: Selection) -> None:
    if selection.has("fetch"):
        fetch_missing(recipe)
    if selection.last != "fetch":
        check_files(all_corpora(recipe), Path(recipe.data.root))


def _average_and_test(folder: RunFolder, recipe: Recipe, selection: Selection) -> dict[str, Scores]:
    """The stages after training, as far as selected."""
    if selection.has("average"):
        available = len(folder.steps())
        if recipe.average.checkpoints > available:
            log.warning(
                "average.checkpoints is %d, and %d are there; training.keep_last and training.keep_best decide",
                recipe.average.checkpoints,
                available,
            )
        count = max(1, min(recipe.average.checkpoints, available))
        average(folder, recipe.average.select, count, again=selection.forces("average"))
    if not selection.has("test"):
        return {}
    scores = score_tests(recipe, again=selection.forces("test"))
    if not scores:
        log.info("test: the recipe has no test corpora")
    return scores
