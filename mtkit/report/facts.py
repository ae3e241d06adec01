"""What a run folder tells of its run, finished or not, and what is missing from it. Reads no weights; free of torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtkit.data.report import REPORT_FILE, Report
from mtkit.describe import describe
from mtkit.errors import DataError, ModelError, MtkitError
from mtkit.figures import duration
from mtkit.folders import RECIPE_FILE, WEIGHTS_FILE, RunFolder, checkpoint_state
from mtkit.lineage import fingerprint
from mtkit.recipe import Recipe
from mtkit.report.series import Event, read_history
from mtkit.strict_yaml import dump_yaml, read_yaml
from mtkit.text.tokenizer import Tokenizers

Sample = tuple[str, str, str]


@dataclass(slots=True)
class Facts:
    """What the page shows, but for scores and attention, as far as it is there; `missing` says what is not, and why.

    `changed` are, as YAML, the recipe's settings that differ from their defaults, but for what is downloaded. `model`
    is `describe`'s account of the averaged model, or else of the newest checkpoint.
    """

    name: str
    run: RunFolder
    recipe: Recipe | None = None
    recipe_text: str = ""
    changed: str = ""
    data: Report | None = None
    events: list[Event] = field(default_factory=list)
    model: dict[str, Any] | None = None
    chain: list["Link"] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The run and its languages."""
        if self.recipe is None:
            return self.name
        return f"{self.name}: {self.recipe.languages.source} → {self.recipe.languages.target}"


@dataclass(frozen=True, slots=True)
class Link:
    """One thing that the run was made of or has made: what it is, its SHA-256, and whether that is as it should be.

    `note` is empty where there was nothing to compare it with.
    """

    what: str
    sha256: str
    note: str = ""
    fits: bool = True


def gather(folder: Path) -> Facts:
    """The facts of a run folder. Raises DataError when it is none."""
    run = RunFolder(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder", "give a run folder, for example runs/quickstart")
    if (folder / WEIGHTS_FILE).exists():
        raise DataError(f"{folder}: is a model folder or a checkpoint", "a report is about the run folder it lies in")
    if not any(path.exists() for path in (run.recipe, run.stages, run.metrics, run.shards)):
        raise DataError(f"{folder}: holds nothing of a run", "give a run folder, for example runs/quickstart")
    facts = Facts(folder.resolve().name, run)
    _add_recipe(facts)
    _add_data(facts)
    facts.events = read_history(run)
    _add_model(facts)
    facts.chain = _chain(facts)
    _note_missing_events(facts)
    return facts


def _add_recipe(facts: Facts) -> None:
    path = facts.run.recipe
    if not path.is_file():
        facts.missing.append(f"Recipe: {RECIPE_FILE} is not there; training writes it when it begins.")
        return
    try:
        facts.recipe = Recipe.load(path)
    except MtkitError as error:
        facts.missing.append(f"Recipe: {error.message}")
        return
    facts.recipe_text = facts.recipe.dump()
    changed = facts.recipe.model_dump(mode="json", exclude_defaults=True)
    changed["data"].pop("downloads", None)
    facts.changed = dump_yaml(changed)


def _add_data(facts: Facts) -> None:
    if not (facts.run.shards / REPORT_FILE).is_file():
        facts.missing.append(f"Data report: shards/{REPORT_FILE} is not there; mtkit binarize RECIPE makes it.")
        return
    try:
        facts.data = Report.load(facts.run.shards)
    except MtkitError as error:
        facts.missing.append(f"Data report: {error.message}")


def _add_model(facts: Facts) -> None:
    run = facts.run
    if not (run.model / WEIGHTS_FILE).is_file():
        if not run.steps():
            facts.missing.append("Model: there is no checkpoint yet.")
            return
        facts.missing.append("Model: the averaged model is not there yet; the newest checkpoint stands in for it.")
    try:
        facts.model = describe(run.path)
    except (MtkitError, OSError) as error:
        facts.missing.append(f"Model: {error}")


def _note_missing_events(facts: Facts) -> None:
    kinds = {row.get("event") for row in facts.events}
    if "train" not in kinds:
        facts.missing.append("Training curves: metrics.jsonl has no update yet.")
    if "valid" not in kinds:
        no_corpus = facts.recipe is not None and not facts.recipe.data.valid
        why = "the recipe has no validation corpus" if no_corpus else "there was no validation yet"
        facts.missing.append(f"Validation scores: {why}.")
    elif "samples" not in kinds:
        facts.missing.append("Validation samples: none were kept; training.samples says how many.")


def status(events: Sequence[Event]) -> tuple[str, bool]:
    """How far the run is, in words, and whether it came to its end.

    >>> status([])
    ('training has not begun', False)
    """
    if not events:
        return "training has not begun", False
    step = max(row["step"] for row in events)
    last = events[-1]
    if last.get("event") == "end":
        reason = str(last.get("reason"))
        words = {"max_steps": "training complete", "max_epochs": "training complete"}.get(reason, reason)
        return f"{words}, step {step:,}", not reason.startswith("stopped by")
    return f"under way or cut off at step {step:,}, last heard of {last.get('time')}", False


def seconds_of(events: Sequence[Event]) -> str:
    """The training time as far as it is known, in words; empty when it is not."""
    ends = [row["seconds"] for row in events if row.get("event") == "end" and "seconds" in row]
    return duration(ends[-1]) if ends else ""


def samples(events: Sequence[Event], most: int, steps: int) -> list[tuple[int, list[Sample]]]:
    """The validation samples over time: at most `most` sentences at `steps` steps, first and last among them."""
    kept = [(row["step"], _sound(row.get("samples"))[:most]) for row in events if row.get("event") == "samples"]
    by_step = {step: found for step, found in kept if found}
    ordered = sorted(by_step)
    if len(ordered) > steps:
        ordered = [ordered[round(place * (len(ordered) - 1) / (steps - 1))] for place in range(steps)]
    return [(step, by_step[step]) for step in ordered]


def _sound(rows: Any) -> list[Sample]:
    """The rows that are a source, a hypothesis and a reference."""
    if not isinstance(rows, list):
        return []
    whole = (row for row in rows if isinstance(row, list) and len(row) == 3)
    return [(row[0], row[1], row[2]) for row in whole if all(isinstance(text, str) for text in row)]


def _chain(facts: Facts) -> list[Link]:
    """From the text of the corpora to the weights that were tested, as far as it is there."""
    links = []
    trained_on = (facts.model or {}).get("sha256", {}).get("corpora") or {}
    for row in facts.data.corpora if facts.data else ():
        of_model = trained_on.get(f"{row.part} {row.corpus}", {})
        for side, sha256 in (("source", row.source_sha256), ("target", row.target_sha256)):
            what = f"corpus {row.part} {row.corpus}, {side}"
            links.append(_compared(what, sha256, [of_model.get(side)], "the model's"))
    tokenizer = _tokenizer(facts)
    if tokenizer is not None:
        links.append(Link("tokenizer of the run", tokenizer))
    if facts.data:
        made_by = facts.data.tokenizer_sha256
        links.append(_compared("tokenizer that made the shards", made_by, [tokenizer], "the run's"))
    recipes = _recipe_hashes(facts)
    if recipes:
        links.append(Link(f"recipe of the run ({RECIPE_FILE}, all settings)", recipes[0]))
    links += _checkpoints(facts)
    if facts.model:
        hashes = facts.model["sha256"]
        steps = ", ".join(f"{step:,}" for step in facts.model["steps"] or []) or "unknown"
        links += [
            _compared(f"recipe of the model (steps {steps})", hashes["recipe"], recipes, "the run's"),
            _compared("tokenizer of the model", hashes["tokenizer"], [tokenizer], "the run's"),
            Link("weights of the model", hashes["weights"] or ""),
        ]
    return links


def _recipe_hashes(facts: Facts) -> list[str]:
    """The hash of the recipe as it is written, and with the settings that have come into being since."""
    if facts.recipe is None:
        return []
    return [fingerprint(read_yaml(facts.run.recipe).value), facts.recipe.sha256()]


def _tokenizer(facts: Facts) -> str | None:
    """The hash of the run's tokenizer; None when it is not there, which is noted."""
    try:
        return Tokenizers.load(facts.run.path).sha256
    except ModelError as error:
        facts.missing.append(f"Tokenizer: {error.message}")
        return None


def _checkpoints(facts: Facts) -> list[Link]:
    """The weights of every checkpoint that is there, and what the run began with where that is another model."""
    links: list[Link] = []
    for step in facts.run.steps():
        try:
            state = checkpoint_state(facts.run.checkpoint(step))
        except (MtkitError, OSError) as error:
            links.append(Link(f"checkpoint {step:,}", "", str(error), False))
            continue
        began = (state.get("initialized_from") or {}).get("weights_sha256")
        if began and not links:
            links.append(Link("weights that training began with", began))
        links.append(Link(f"checkpoint {step:,}, weights", state["sha256"][WEIGHTS_FILE]))
    return links


def _compared(what: str, sha256: str | None, others: Sequence[str | None], whose: str) -> Link:
    """A link that says whether it is one of the others; says nothing where none of them is known."""
    known = [other for other in others if other]
    if not known or not sha256:
        return Link(what, sha256 or "")
    same = sha256 in known
    return Link(what, sha256, f"{'same as' if same else 'differs from'} {whose}", same)
