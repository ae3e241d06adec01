"""The stages of a run: what each reads and writes, and which are up to date.

    fetch      recipe.data.downloads             -> data.root
    tokenizer  training text                     -> RUN/tokenizer*.model
    binarize   corpora, tokenizer                -> RUN/shards/
    train      shards                            -> RUN/checkpoints/, RUN/metrics.jsonl
    average    checkpoints                       -> RUN/model/
    test       RUN/model/, test corpora          -> RUN/test/*.txt, RUN/scores.json

RUN/stages.json holds, for each stage that is done, the fingerprint of all it has read. A stage is up to date while
that fingerprint is the same and what it wrote is there: contents count, time stamps do not.
"""

import logging
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtkit.average import mean, select
from mtkit.checkpoint import WEIGHTS_FILE, RunFolder, checkpoint_state, load_checkpoint, read_lineage, save_model
from mtkit.data.binarize import binarize
from mtkit.data.corpus import check_files, read_pairs
from mtkit.data.fetch import fetch
from mtkit.data.report import REPORT_FILE, Report
from mtkit.data.vocabulary import train_tokenizer
from mtkit.errors import DataError, ModelError, RecipeError
from mtkit.evaluate import MetricScore, Scores, check_setup, score
from mtkit.files import atomic_write, read_json, sha256_file, write_json
from mtkit.lineage import corpus_files, corpus_hashes, fingerprint
from mtkit.recipe import Recipe
from mtkit.sections.data import Corpus
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.log import duration
from mtkit.training.trainer import Outcome, train_model
from mtkit.translator import Translator

log = logging.getLogger(__name__)

SCORES_FILE = "scores.json"


def run_folder(recipe: Recipe) -> RunFolder:
    """The recipe's run folder. Raises RecipeError when a file is in its place."""
    path = Path(recipe.run_dir)
    if path.exists() and not path.is_dir():
        raise RecipeError(f"run_dir: {path} is a file", "choose another run_dir")
    return RunFolder(path)


def _root(recipe: Recipe) -> Path:
    return Path(recipe.data.root)


def _done(run: RunFolder) -> dict[str, str]:
    """The fingerprints of the stages that are done; empty when the file is missing or damaged."""
    path = run.path / "stages.json"
    if not path.is_file():
        return {}
    try:
        stages = read_json(path)
    except DataError as error:
        log.warning("%s; all stages count as not done", error.message)
        return {}
    return stages if isinstance(stages, dict) else {}


def _mark(run: RunFolder, stage: str, inputs: str) -> None:
    write_json(run.path / "stages.json", _done(run) | {stage: inputs})


def ensure_tokenizer(recipe: Recipe, *, force: bool = False) -> Tokenizers:
    """The run's tokenizers, trained first where they are missing or their text or settings have changed.

    Raises RecipeError where that would pull the rug from under checkpoints that were trained with the old ones.
    """
    run = run_folder(recipe)
    hashes = corpus_hashes(recipe.data.train, _root(recipe))
    corpora = [corpus.model_dump(exclude={"weight"}) for corpus in recipe.data.train]
    inputs = fingerprint([recipe.tokenizer.model_dump(), recipe.symbols(), corpora, hashes])
    if not force and _done(run).get("tokenizer") == inputs:
        try:
            tokenizers = Tokenizers.load(run.path)
            log.info("tokenizer: up to date (%s)", _sizes(tokenizers))
            return tokenizers
        except ModelError as error:
            log.warning("%s; training the tokenizer again", error.message)
    _refuse_with_checkpoints(run, "tokenizer")
    tokenizers = train_tokenizer(recipe, run.path)
    _mark(run, "tokenizer", inputs)
    log.info("tokenizer: trained (%s)", _sizes(tokenizers))
    return tokenizers


def _sizes(tokenizers: Tokenizers) -> str:
    if tokenizers.joint:
        return f"joint vocabulary of {tokenizers.source.size:,}"
    return f"vocabularies of {tokenizers.source.size:,} and {tokenizers.target.size:,}"


def _refuse_with_checkpoints(run: RunFolder, what: str) -> None:
    if run.steps():
        raise RecipeError(
            f"{run.path}: the {what} would have to be made again (text or settings have changed, or it is missing), "
            f"and the {len(run.steps())} checkpoints there belong to the old one",
            "start anew with --fresh, which deletes the checkpoints, or with --set run_dir=OTHER, which keeps them",
        )


def ensure_shards(recipe: Recipe, tokenizers: Tokenizers, *, force: bool = False, workers: int | None = None) -> None:
    """Binarize the corpora where shards are missing or what they were made from has changed."""
    run = run_folder(recipe)
    data = recipe.data
    hashes = corpus_hashes((*data.train, *data.valid), _root(recipe))
    corpora = [corpus.model_dump(exclude={"weight"}) for corpus in (*data.train, *data.valid)]
    inputs = fingerprint([recipe.filters.model_dump(), tokenizers.sha256, corpora, hashes])
    if not force and _done(run).get("binarize") == inputs and (run.shards / REPORT_FILE).is_file():
        log.info("shards: up to date")
        return
    _refuse_with_checkpoints(run, "shards")
    report = binarize(recipe, tokenizers, run.shards, workers)
    _mark(run, "binarize", inputs)
    for line in report.render().split("\n"):
        log.info("%s", line)


def clear(recipe: Recipe) -> None:
    """Delete what training has left in the run folder, so that it starts anew; tokenizer and shards stay."""
    run = run_folder(recipe)
    for folder in (run.checkpoints, run.model, run.path / "test"):
        if folder.is_dir():
            shutil.rmtree(folder)
    for file in (run.recipe, run.path / SCORES_FILE):
        file.unlink(missing_ok=True)


def train(recipe: Recipe, *, fresh: bool = False) -> Outcome:
    """Train a recipe's model, making tokenizer and shards first where they are missing or stale.

    Continues from the newest checkpoint of the run folder; `fresh` deletes the run's checkpoints first.
    Returns how training ended. Raises MtkitError of many kinds, each with what to do.
    """
    if fresh:
        clear(recipe)
    check_setup(recipe.evaluation, recipe.languages.target)
    tokenizers = ensure_tokenizer(recipe)
    ensure_shards(recipe, tokenizers)
    return train_model(recipe, tokenizers)


def average(run: RunFolder, how: str, count: int) -> list[int]:
    """Average checkpoints of a run into its model folder; returns their steps.

    Raises ModelError when there are none or one is damaged, UsageError when there are too few.
    """
    if not run.recipe.is_file():
        raise ModelError(f"{run.path}: is not a run folder, it has no recipe.yaml", "train first: mtkit train RECIPE")
    recipe = Recipe.load(run.recipe)
    folders = select(run, how, count)
    states = [checkpoint_state(folder) for folder in folders]
    for folder in folders:
        load_checkpoint(folder)
    steps = [int(state["step"]) for state in states]
    if (run.model / WEIGHTS_FILE).is_file() and _same_model(run, states, recipe):
        log.info("model: up to date (steps %s)", ", ".join(map(str, steps)))
        return steps
    lineage = {
        "steps": steps,
        "checkpoints_sha256": [state["sha256"][WEIGHTS_FILE] for state in states],
        "scores": [read_json(folder / "scores.json") for folder in folders],
        "target_tokens": states[-1]["train"]["target_tokens"],
        "seconds": states[-1]["train"]["seconds"],
        "recipe_sha256": recipe.sha256(),
        "corpora_sha256": _corpora_of(run),
    }
    save_model(run.model, mean(folders), recipe, Tokenizers.load(run.path), lineage)
    log.info("model: %s from steps %s", run.model, ", ".join(map(str, steps)))
    return steps


def _same_model(run: RunFolder, states: Sequence[dict[str, Any]], recipe: Recipe) -> bool:
    lineage = read_lineage(run.model)
    return (
        lineage.get("checkpoints_sha256") == [state["sha256"][WEIGHTS_FILE] for state in states]
        and lineage.get("recipe_sha256") == recipe.sha256()
        and lineage.get("weights_sha256") == sha256_file(run.model / WEIGHTS_FILE)
    )


def _corpora_of(run: RunFolder) -> dict[str, dict[str, str]]:
    """The hashes of the text that was binarized, by part and corpus."""
    rows = Report.load(run.shards).corpora
    return {f"{row.part} {row.corpus}": {"source": row.source_sha256, "target": row.target_sha256} for row in rows}


def score_tests(recipe: Recipe, *, force: bool = False) -> dict[str, Scores]:
    """Translate every test corpus with RUN/model and score it; writes RUN/test/NAME.txt and RUN/scores.json.

    What is there is read back where model, test text, search and evaluation are the same as last time.
    """
    run = run_folder(recipe)
    hashes = corpus_hashes(recipe.data.test, _root(recipe))
    sections = [recipe.search.model_dump(), recipe.evaluation.model_dump(), recipe.languages.model_dump()]
    corpora = [corpus.model_dump() for corpus in recipe.data.test]
    inputs = fingerprint([sha256_file(run.model / WEIGHTS_FILE), sections, corpora, hashes])
    if not force and _done(run).get("test") == inputs and (run.path / SCORES_FILE).is_file():
        log.info("test: up to date")
        return _read_scores(run)
    translator = Translator.load(run.model, recipe.training.device)
    scores: dict[str, Scores] = {}
    for corpus in recipe.data.test:
        pairs = list(read_pairs(corpus, _root(recipe)))
        began = time.perf_counter()
        stream = translator.translate_stream([pair.source for pair in pairs], recipe.search, tags=corpus.tags)
        hypotheses = [translation.text for translation in stream]
        seconds = time.perf_counter() - began
        log.info("test %s: %d sentences in %s", corpus.name, len(pairs), duration(seconds))
        with atomic_write(run.path / "test" / f"{corpus.name}.txt") as file:
            file.writelines(f"{line}\n" for line in hypotheses)
        references = [pair.target for pair in pairs]
        scores[corpus.name] = score(hypotheses, [references], recipe.evaluation, recipe.languages.target)
    tests = {name: figures.as_dict() for name, figures in scores.items()}
    write_json(run.path / SCORES_FILE, {"weights_sha256": sha256_file(run.model / WEIGHTS_FILE), "tests": tests})
    _mark(run, "test", inputs)
    return scores


def _read_scores(run: RunFolder) -> dict[str, Scores]:
    tests = read_json(run.path / SCORES_FILE)["tests"]
    return {
        name: Scores(
            {metric: MetricScore(**values) for metric, values in row["metrics"].items()},
            row["sentences"],
            row["references"],
        )
        for name, row in tests.items()
    }


def fetch_missing(recipe: Recipe) -> None:
    """Download the recipe's public files where one of its corpora is not there."""
    missing = [path for path in corpus_files(_all_corpora(recipe), _root(recipe)) if not path.exists()]
    if missing and recipe.data.downloads:
        fetch(recipe)
    else:
        log.info("fetch: nothing to download")


def _all_corpora(recipe: Recipe) -> list[Corpus]:
    return [*recipe.data.train, *recipe.data.valid, *recipe.data.test]


def run(recipe: Recipe, *, fresh: bool = False) -> tuple[Outcome, dict[str, Scores]]:
    """All stages in order, skipping what is up to date; returns how training ended and the scores of each test corpus.

    When a signal stopped training, the stages after it are not done and there are no scores.
    """
    fetch_missing(recipe)
    check_files(_all_corpora(recipe), _root(recipe))
    outcome = train(recipe, fresh=fresh)
    if outcome.signal_number is not None:
        return outcome, {}
    available = len(run_folder(recipe).steps())
    if recipe.average.checkpoints > available:
        log.warning("average.checkpoints is %d, and %d are there", recipe.average.checkpoints, available)
    average(run_folder(recipe), recipe.average.select, min(recipe.average.checkpoints, available))
    return outcome, score_tests(recipe)
