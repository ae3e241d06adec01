"""The model that a run starts from (`training.initialize_from`): what it is, and whether it fits the recipe.

Nothing here needs torch: the weights are read when training begins.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtkit.errors import RecipeError
from mtkit.files import sha256_file
from mtkit.folders import LINEAGE_FILE, RECIPE_FILE, STATE_FILE, checkpoint_state, find_model, read_lineage
from mtkit.recipe import Recipe
from mtkit.text.extend import extended
from mtkit.text.tokenizer import Tokenizers

FREE = {"dropout", "attention_dropout", "activation_dropout", "layer_dropout"}
"""Settings of the model that may differ from the initial model's: they concern how it learns, not what it is."""


@dataclass(frozen=True, slots=True)
class InitialModel:
    """A model to start from: `folder` as the recipe names it, its weights' file and their hash, and its tokenizers.

    `updates` counts those that its schedule has seen; 0 where its folder does not say.
    """

    folder: str
    weights: Path
    weights_sha256: str
    tokenizers: Tokenizers
    updates: int = 0

    def lineage(self) -> dict[str, Any]:
        """What checkpoints and model folders say of it."""
        return {
            "folder": self.folder,
            "weights_sha256": self.weights_sha256,
            "tokenizer_sha256": self.tokenizers.sha256,
            "updates": self.updates,
        }


def initial_model(recipe: Recipe) -> InitialModel | None:
    """The model that the recipe starts from; None for random weights.

    Raises ModelError when it is missing, and RecipeError naming the keys when it is of another shape or has a tokenizer
    of other settings.
    """
    folder = recipe.training.initialize_from
    if folder is None:
        return None
    run, place = Path(recipe.run_dir).resolve(), Path(folder).resolve()
    if run == place or run in place.parents:
        raise RecipeError(
            f"training.initialize_from: {folder} lies in this run's own folder, {recipe.run_dir}, where it will change",
            "choose another run_dir for the new run",
        )
    weights, home = find_model(Path(folder))
    theirs = Recipe.load(home / RECIPE_FILE)
    exempt = FREE if recipe.model.positions == "learned" else FREE | {"max_positions"}
    _compare("model", recipe.model.model_dump(exclude=exempt), theirs.model.model_dump(exclude=exempt), folder, home)
    exempt = {"user_defined_symbols", "bpe_dropout"}
    ours, others = (one.tokenizer.model_dump(exclude=exempt) for one in (recipe, theirs))
    _compare("tokenizer", ours, others, folder, home)
    updates = _updates(weights.parent, theirs)
    if recipe.training.continue_schedule and not updates:
        raise RecipeError(
            f"training.continue_schedule: {weights.parent} does not say after how many updates its schedule stopped",
            "leave it out, and the schedule begins anew",
        )
    return InitialModel(folder, weights, sha256_file(weights), Tokenizers.load(home), updates)


def _updates(folder: Path, recipe: Recipe) -> int:
    """How many updates the schedule behind a model or checkpoint folder has seen, those that it continued included."""
    if (folder / STATE_FILE).is_file():
        document = checkpoint_state(folder)
        own = int(document["step"])
    elif (folder / LINEAGE_FILE).is_file():
        document = read_lineage(folder)
        own = max(map(int, document.get("steps", ())), default=0)
    else:
        return 0
    origin = (document.get("initialized_from") or {}) if recipe.training.continue_schedule else {}
    return own + int(origin.get("updates", 0))


def _compare(section: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], folder: str, home: Path) -> None:
    rows = [f"\n  {section}.{key}: {ours[key]!r}, there {theirs[key]!r}" for key in ours if ours[key] != theirs[key]]
    if rows:
        raise RecipeError(
            f"training.initialize_from: {folder} has another {section} than the recipe:{''.join(rows)}",
            f"take these settings from {home / RECIPE_FILE}",
        )


def starting_tokenizers(initial: InitialModel, recipe: Recipe) -> Tokenizers:
    """The initial model's tokenizers, with the symbols of the recipe that they lack put at the end, in order.

    All ids stay as they are. Raises RecipeError for a symbol that cannot be one, or is a piece already.
    """
    before = initial.tokenizers
    if before.joint:
        both = extended(before.source, recipe.symbols())
        return Tokenizers(both, both)
    return Tokenizers(extended(before.source, recipe.symbols()), extended(before.target, recipe.symbols()))
