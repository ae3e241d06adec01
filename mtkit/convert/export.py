"""Exporting as one piece of work: read the model, write the folder beside, compare, put it in its place, report."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from mtkit.checkpoint import load_model
from mtkit.convert.folder import Kind, export_folder
from mtkit.convert.to_ctranslate2 import (
    MODEL_FILE,
    Quantization,
    ctranslate2_origin,
    positions_needed,
    require_ctranslate2,
    write_ctranslate2,
)
from mtkit.convert.to_huggingface import huggingface_origin, write_huggingface
from mtkit.convert.transformers_answers import transformers_answers, transformers_version
from mtkit.convert.verify import Agreement, Answer, answers, compare, verification_lines
from mtkit.ctranslate2_engine import CTranslate2Engine, refuse
from mtkit.engine import ModelEngine
from mtkit.errors import DataError, UsageError
from mtkit.figures import size
from mtkit.folders import WEIGHTS_FILE, find_model
from mtkit.recipe import Recipe
from mtkit.sections.search import Beam, Greedy, Search
from mtkit.translator import Translator

_LOG = logging.getLogger(__name__)

_TITLES = {"ctranslate2": "CTranslate2", "huggingface": "transformers"}
_ENOUGH = 0.95
"""A float32 export that agrees on fewer lines than this is suspicious."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be exported, where to, and what it is verified on."""

    model: Path
    kind: Kind
    output: Path | None
    quantization: Quantization
    verify: Path | None
    verify_lines: int
    threads: int | None


def export_model(wish: Wish) -> Iterator[str]:
    """Export and yield what there is to report, line by line; the folder is in its place before the first.

    Raises UsageError for an architecture that the format cannot hold or an extra that is missing, ModelError for a
    model that is damaged, MtkitError where something else is in the way.
    """
    weights, _ = find_model(wish.model)
    if wish.kind == "ctranslate2":
        require_ctranslate2()
    model, recipe, tokenizers = load_model(wish.model, torch.device("cpu"))
    own = Translator(ModelEngine(model), recipe, tokenizers)
    folder = wish.output or _beside(wish, weights)
    lines, where = _lines(wish, recipe)
    reports: list[str] = []
    if wish.kind == "ctranslate2":
        positions = positions_needed(recipe)
        origin = ctranslate2_origin(weights, recipe, tokenizers, wish.quantization, positions)
        with export_folder(folder, origin) as new:
            write_ctranslate2(new, model, recipe, tokenizers, wish.quantization, positions)
            if lines:
                reports = _verify_ctranslate2(wish, own, new, lines, where)
    else:
        with export_folder(folder, huggingface_origin(weights, recipe, tokenizers)) as new:
            write_huggingface(new, model, recipe, tokenizers, weights.parent)
            if lines:
                reports = _verify_huggingface(own, new, lines, where)
    written = folder / (MODEL_FILE if wish.kind == "ctranslate2" else WEIGHTS_FILE)
    yield f"{folder}: {size(written.stat().st_size)} (mtkit: {size(weights.stat().st_size)})"
    yield from reports


def _beside(wish: Wish, weights: Path) -> Path:
    """The default output: beside the model folder, by its name."""
    home = weights.parent.absolute()
    suffix = f"-{wish.quantization}" if wish.kind == "ctranslate2" and wish.quantization != "float32" else ""
    return home.with_name(f"{home.name}-{wish.kind}{suffix}")


def _lines(wish: Wish, recipe: Recipe) -> tuple[list[str], str]:
    """The lines to verify on, and where they are from; none where none can be reached, which is told."""
    if wish.verify_lines == 0:
        return [], ""
    try:
        where, lines = verification_lines(recipe, wish.verify, wish.verify_lines)
    except DataError as error:
        if wish.verify is not None:
            raise
        _LOG.warning("not verified: %s; give lines with --verify FILE", error.message)
        return [], ""
    return lines, where


def _verify_ctranslate2(wish: Wish, own: Translator, folder: Path, lines: list[str], where: str) -> list[str]:
    """Compare by the recipe's search, or by beam search where CTranslate2 cannot do that one."""
    search: Search = own.recipe.search
    try:
        refuse(search)
    except UsageError as error:
        _LOG.warning("verified by beam search instead of the recipe's search: %s", error.message)
        search = Beam(rules=search.rules.model_copy(update={"min_length_ratio": 0.0}), lines=search.lines)
    engine = CTranslate2Engine(folder, own.tokenizers, "cpu", wish.threads)
    other = Translator(engine, own.recipe, own.tokenizers)
    return _report(
        wish.kind,
        where,
        search,
        lambda: answers(own, lines, search),
        lambda: answers(other, lines, search),
        wish.quantization == "float32",
    )


def _verify_huggingface(own: Translator, folder: Path, lines: list[str], where: str) -> list[str]:
    """Compare greedy search and the recipe's beam, where transformers is installed."""
    if transformers_version() is None:
        _LOG.warning("not verified: install the extra: python -m pip install 'mtkit[huggingface]'")
        return []
    beam = own.recipe.search if isinstance(own.recipe.search, Beam) else Beam()
    rules, plan = own.recipe.search.rules, own.recipe.search.lines
    searches: list[Greedy | Beam] = [
        Greedy(method="greedy", rules=rules, lines=plan),
        Beam(beam_size=beam.beam_size, length_penalty=beam.length_penalty, rules=rules, lines=plan),
    ]
    reports = []
    for search in searches:
        reports += _report(
            "huggingface",
            where,
            search,
            lambda search=search: answers(own, lines, search),  # type: ignore[misc]
            lambda search=search: transformers_answers(folder, lines, search),  # type: ignore[misc]
            True,
        )
    return reports


def _report(
    kind: Kind,
    where: str,
    search: Search,
    first: Callable[[], list[Answer]],
    second: Callable[[], list[Answer]],
    exact: bool,
) -> list[str]:
    """Two lines about how both compare; a warning where they do not agree as they should."""
    agreement: Agreement = compare(first, second)
    name = f"beam {search.beam_size}" if isinstance(search, Beam) else search.method
    if exact and agreement.share < _ENOUGH:
        _LOG.warning("%s and mtkit should agree on more lines than %s", _TITLES[kind], agreement)
    speeds = [f"{speed:,.0f}" for speed in agreement.speeds]
    return [
        f"{name}, {where}: {agreement}",
        f"{name}, cpu, {torch.get_num_threads()} threads, tokens/s: mtkit {speeds[0]}, {_TITLES[kind]} {speeds[1]}",
    ]
