"""What a model is: languages, sizes, architecture, training, scores, hashes. Reads headers and no weights."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mtkit.data.report import REPORT_FILE
from mtkit.errors import DataError, ModelError
from mtkit.figures import duration, size
from mtkit.files import read_json, sha256_file
from mtkit.folders import (
    LINEAGE_FILE,
    RECIPE_FILE,
    SCORES_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    RunFolder,
    check_checkpoint,
    checkpoint_state,
    find_model,
    read_lineage,
    read_scores,
    read_tensor_table,
)
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers


def describe(folder: Path) -> dict[str, Any]:
    """All that is known of the model in a model, run or checkpoint folder, as JSON values.

    Of a run folder that has no average yet it is the newest checkpoint.

    Raises ModelError when there is no model, or a file of it is missing or damaged as far as that shows without
    reading the weights; see `verify`.
    """
    weights_path, home = _find(folder)
    recipe, tokenizers = Recipe.load(home / RECIPE_FILE), Tokenizers.load(home)
    table = read_tensor_table(weights_path)
    history = _history(weights_path.parent)
    hashes = history.pop("sha256")
    return {
        "folder": str(weights_path.parent),
        "languages": recipe.languages.model_dump(mode="json"),
        "vocabulary": {
            "joint": tokenizers.joint,
            "source": tokenizers.source.size,
            "target": tokenizers.target.size,
            "normalization": tokenizers.source.normalization,
        },
        "parameters": sum(info.numbers for info in table.values()),
        "dtypes": sorted({info.dtype for info in table.values()}),
        "architecture": recipe.model.model_dump(mode="json"),
        **history,
        "test": _tests(weights_path.parent, hashes["weights"]),
        "sha256": {
            **hashes,
            "recipe_is_as_trained": hashes["recipe"] in (None, recipe.sha256()),
            "tokenizer_is_as_trained": hashes["tokenizer"] in (None, tokenizers.sha256),
        },
        "files": {path.name: path.stat().st_size for path in sorted(weights_path.parent.iterdir()) if path.is_file()},
    }


def _find(folder: Path) -> tuple[Path, Path]:
    """As `find_model`; of a run that has no average yet, the newest checkpoint."""
    run = RunFolder(folder)
    steps = run.steps()
    if steps and not (run.model / WEIGHTS_FILE).is_file():
        return find_model(run.checkpoint(steps[-1]))
    return find_model(folder)


def _history(folder: Path) -> dict[str, Any]:
    """How the weights came to be, by the lineage of a model folder or the state of a checkpoint."""
    if (folder / LINEAGE_FILE).is_file():
        lineage = read_lineage(folder)
        scores = [row for row in lineage.get("scores", ()) if row]
        steps, seconds, tokens = lineage.get("steps"), lineage.get("seconds"), lineage.get("target_tokens")
        names = ("files", "corpora", "tokenizer", "shards", "checkpoints", "weights", "recipe")
        hashes = {name: lineage.get(f"{name}_sha256") for name in names}
    elif (folder / STATE_FILE).is_file():
        state = checkpoint_state(folder)
        row = read_scores(folder)
        scores = [row] if row else []
        steps, seconds, tokens = [state["step"]], state["train"]["seconds"], state["train"]["target_tokens"]
        hashes = {"files": None, "corpora": None, "checkpoints": None, "weights": state["sha256"][WEIGHTS_FILE]}
        hashes |= {name: state.get(f"{name}_sha256") for name in ("tokenizer", "shards", "recipe")}
    else:
        raise ModelError(f"{folder}: has neither {LINEAGE_FILE} nor {STATE_FILE}", "copy the model folder whole")
    return {
        "steps": steps,
        "training_seconds": seconds,
        "training_target_tokens": tokens,
        "validation": scores,
        "sha256": hashes,
    }


def _tests(folder: Path, weights_sha256: str | None) -> dict[str, Any]:
    """The test scores of the run that the folder lies in, if they are of these weights."""
    path = RunFolder(folder.absolute().parent).path / SCORES_FILE
    if not path.is_file():
        return {}
    try:
        document = read_json(path)
    except DataError as error:
        raise ModelError(error.message, "delete it, and make it again with: mtkit run RECIPE") from None
    if not isinstance(document, dict) or document.get("weights_sha256") != weights_sha256:
        return {}
    return dict(document.get("tests", {}))


def verify(folder: Path) -> dict[str, str]:
    """Compare hashes: of weights and tokenizer, and in a run folder of shards and test translations.

    Returns for each file of the corpora how it is now: unchanged, changed or not here (paths start at the recipe's
    data.root). Raises ModelError, naming the two files, where one is not what the other says.
    """
    weights_path, home = _find(folder)
    model = weights_path.parent
    if (model / LINEAGE_FILE).is_file():
        expected = read_lineage(model)
        found = sha256_file(weights_path)
        if found != expected.get("weights_sha256"):
            raise ModelError(
                f"{weights_path}: its SHA-256 is {found}, {LINEAGE_FILE} says {expected.get('weights_sha256')}",
                "the weights are damaged or were replaced; make them again with: mtkit average RUN",
            )
    else:
        expected = check_checkpoint(model)
    tokenizers = Tokenizers.load(home)
    if tokenizers.sha256 != expected.get("tokenizer_sha256"):
        names = " and ".join(str(path) for path, _ in tokenizers.files(home))
        raise ModelError(
            f"{names}: the SHA-256 is {tokenizers.sha256}, the weights were trained with "
            f"{expected.get('tokenizer_sha256')}",
            "weights and tokenizer must come from one run; copy the model folder whole",
        )
    _verify_run(weights_path, expected)
    root = Path(Recipe.load(home / RECIPE_FILE).data.root)
    return {name: _state_of(root / name, sha256) for name, sha256 in (expected.get("files_sha256") or {}).items()}


def _verify_run(weights_path: Path, expected: Mapping[str, Any]) -> None:
    """Raise ModelError where shards or test translations of the run that a model lies in do not belong to it."""
    model = weights_path.parent
    run = RunFolder(model.absolute().parent if (model / LINEAGE_FILE).is_file() else model.absolute().parent.parent)
    report = run.shards / REPORT_FILE
    trained_on = expected.get("shards_sha256")
    if trained_on is not None and report.is_file() and sha256_file(report) != trained_on:
        raise ModelError(
            f"{report} and {weights_path} do not belong together: the shards are not those of the training",
            "make them again from the old text with: mtkit binarize RECIPE",
        )
    for test in _tests(model, sha256_file(weights_path)).values():
        for name, sha256 in test.get("sha256", {}).items():
            path = run.path / name
            if name.startswith(f"{run.test.name}/") and path.is_file() and sha256_file(path) != sha256:
                raise ModelError(
                    f"{path} and {run.scores} do not belong together: the score is of another translation",
                    "translate and score again with: mtkit run RECIPE --from test --force",
                )


def _state_of(path: Path, sha256: str) -> str:
    if not path.is_file():
        return "not here"
    return "unchanged" if sha256_file(path) == sha256 else "changed since"


def render(facts: Mapping[str, Any]) -> str:
    """The facts of `describe` as lines for people."""
    languages, vocabulary = facts["languages"], facts["vocabulary"]
    sizes = f"joint, {vocabulary['source']:,} entries"
    if not vocabulary["joint"]:
        sizes = f"source {vocabulary['source']:,}, target {vocabulary['target']:,} entries"
    steps = facts["steps"] or []
    mean = f"mean of {len(steps)} checkpoints: " if len(steps) > 1 else ""
    rows = [
        ("model", facts["folder"]),
        ("languages", f"{languages['source']} -> {languages['target']}"),
        ("parameters", f"{facts['parameters']:,} ({', '.join(facts['dtypes'])})"),
        ("architecture", _architecture(facts["architecture"])),
        ("vocabulary", f"{sizes}, {vocabulary['normalization']}"),
        ("steps", mean + (", ".join(f"{step:,}" for step in steps) or "unknown")),
        ("training", _training(facts)),
        *(("validation", _validation(row)) for row in facts["validation"]),
        *(("test", line) for name, row in facts["test"].items() for line in _test(name, row)),
        *_chain(facts),
        *(("file", f"{name}, {size(count)}") for name, count in facts["files"].items()),
    ]
    width = max(len(label) for label, _ in rows)
    lines, last = [], ""
    for label, text in rows:
        lines.append(f"{'' if label == last else label:<{width}}  {text}")
        last = label
    return "\n".join(lines)


def _chain(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """From the files of the corpora to the test scores, each with the hash by which the next one knows it."""
    hashes = facts["sha256"]
    for name, value in (hashes["files"] or {}).items():
        yield "corpus file", f"{name}: sha256 {value}" + _now(facts.get("corpus_files", {}).get(name))
    for name, sides in (hashes["corpora"] or {}).items():
        for side, value in sides.items():
            yield "corpus text", f"{name}: {side} sha256 {value}"
    yield "tokenizer", f"sha256 {hashes['tokenizer']}" + _note(hashes["tokenizer_is_as_trained"])
    if hashes["shards"]:
        yield "shards", f"sha256 of their report {hashes['shards']}"
    for step, value in zip(facts["steps"] or (), hashes["checkpoints"] or (), strict=False):
        yield "checkpoint", f"step {step:,}: sha256 {value}"
    yield "weights", f"sha256 {hashes['weights']}"
    yield "recipe", f"sha256 {hashes['recipe']}" + _note(hashes["recipe_is_as_trained"])
    for row in facts["test"].values():
        for name, value in row.get("sha256", {}).items():
            yield "test file", f"{name}: sha256 {value}"


def _now(state: str | None) -> str:
    return f" ({state})" if state else ""


def _note(as_trained: bool) -> str:
    return "" if as_trained else " in training; the file here is another"


def _architecture(model: Mapping[str, Any]) -> str:
    sharing = {
        "all": "one matrix for source, target and output",
        "target": "target shared with output",
        "none": "apart",
    }
    return (
        f"Transformer, {model['encoder_layers']} + {model['decoder_layers']} layers, d_model {model['d_model']}, "
        f"{model['heads']} heads, d_ff {model['d_ff']}, {model['norm']}-norm, {model['activation']}, "
        f"positions {model['positions']}, dropout {model['dropout']:g}, "
        f"embeddings: {sharing[model['share_embeddings']]}{', output bias' if model['output_bias'] else ''}"
    )


def _training(facts: Mapping[str, Any]) -> str:
    seconds, tokens = facts["training_seconds"], facts["training_target_tokens"]
    if seconds is None or tokens is None:
        return "unknown"
    return f"{duration(seconds)}, {tokens:,} target tokens"


def _validation(row: Mapping[str, Any]) -> str:
    figures = [("BLEU", "bleu", ".2f"), ("chrF", "chrf", ".2f"), ("perplexity", "perplexity", ".3f")]
    shown = [f"{label} {row[key]:{form}}" for label, key, form in figures if isinstance(row.get(key), int | float)]
    return f"step {row['step']:,}: {', '.join(shown)}, {row['sentences']:,} sentences"


def _test(name: str, row: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {metric['label']} {metric['score']:.2f}, {row['sentences']:,} sentences, {metric['signature']}"
        for metric in row["metrics"].values()
    ]
