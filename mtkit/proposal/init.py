"""From the names of text files to a recipe: what `mtkit init` does."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtkit.data.corpus import inspect_corpora
from mtkit.errors import UsageError
from mtkit.files import atomic_write
from mtkit.lineage import corpus_names
from mtkit.proposal.choose import Machine, choose, in_words, tokenizer_section, vocabulary_size
from mtkit.proposal.hold_out import HeldOut, hold_out, wanted_pairs
from mtkit.proposal.survey import survey, try_vocabulary
from mtkit.proposal.write import Texts, recipe_text
from mtkit.recipe import Recipe
from mtkit.sections.data import Corpus

log = logging.getLogger(__name__)

Files = tuple[str, str]
"""A source file and a target file, as the user names them."""

_SIDES = ("source", "target")
_COMPRESSED = (".gz", ".xz", ".bz2")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})?")
_NO_LANGUAGE = {
    "gz",
    "xz",
    "bz2",
    "txt",
    "text",
    "tok",
    "bpe",
    "raw",
    "src",
    "tgt",
    "csv",
    "tsv",
    "sgm",
    "xml",
    "out",
    "ref",
    "hyp",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asks for: where the recipe goes, its files by part, and languages, None to read them from names."""

    recipe: Path
    train: Sequence[Files]
    valid: Sequence[Files] = ()
    test: Sequence[Files] = ()
    source_language: str | None = None
    target_language: str | None = None


def initialize(request: Request, machine: Machine) -> HeldOut | None:
    """Write a recipe for the corpora of a request, and held-out files where it has no validation files.

    Nothing that exists is changed. Raises UsageError when the recipe or the folder of the held-out files is there
    already, or languages cannot be told from names; DataError for files that are missing, misaligned or not UTF-8.
    """
    path = request.recipe
    held_folder = path.parent / f"{path.stem}-data"
    for place in (path, *(() if request.valid else (held_folder,))):
        if place.exists() or place.is_symlink():
            raise UsageError(f"{place}: is there already, and nothing is overwritten", "choose another name")
    languages = languages_of(request)
    parts = {part: _corpora(getattr(request, part)) for part in ("train", "valid", "test")}
    inspections = inspect_corpora([corpus for corpora in parts.values() for corpus in corpora], Path())
    held = None
    if not request.valid:
        count = wanted_pairs(sum(one.pairs for one in inspections[: len(parts["train"])]))
        held = hold_out(parts["train"], count, held_folder, languages)
        parts |= {"train": held.train, "valid": [held.valid]}
    found = survey(parts["train"])
    wanted = vocabulary_size(found.pairs, found.characters)
    tokens = try_vocabulary(found, lambda size: tokenizer_section(size, found.characters), wanted)
    proposal = choose(found, tokens, machine)
    with atomic_write(path) as stream:
        stream.write(recipe_text(path, Texts(languages, *_from_one_folder(parts)), found, proposal, machine, held))
    recipe = Recipe.load(path)
    assert recipe.tokenizer.vocab_size == tokens.vocab_size
    log.info("%s training pairs; %s", f"{found.pairs:,}", in_words(proposal.seconds) or f"to train on {machine}")
    if found.blank:
        log.warning("%s pairs have a blank side and will be left out", f"{found.blank:,}")
    return held


def languages_of(request: Request) -> tuple[str, str]:
    """Source and target language: as asked for, else by the suffixes of all files.

    Raises UsageError when names tell nothing, contradict each other, or name the same language twice.
    """
    asked = (request.source_language, request.target_language)
    told: list[str] = []
    for side, (language, option) in enumerate(zip(asked, ("--source-language", "--target-language"), strict=True)):
        if language is not None:
            told.append(language)
            continue
        by_name = {language_of(files[side]): files[side] for files in (*request.train, *request.valid, *request.test)}
        if None in by_name:
            raise UsageError(f"{by_name[None]}: its name does not tell the language", f"add {option} CODE, such as en")
        if len(by_name) > 1:
            first, second = list(by_name.values())[:2]
            raise UsageError(
                f"{first} and {second} are both {('source', 'target')[side]}, and their names tell of two languages",
                f"give each pair as SOURCE TARGET; or say what they are: {option} CODE",
            )
        told.append(str(next(iter(by_name))))
    if told[0] == told[1]:
        raise UsageError(
            f"source and target language are both {told[0]}", "name them: --source-language, --target-language"
        )
    return told[0], told[1]


def language_of(name: str) -> str | None:
    """The language in the suffix of a file name; None when there is none.

    >>> language_of("corpus.de.gz"), language_of("corpus.txt")
    ('de', None)
    """
    parts = Path(name).name.split(".")
    if len(parts) > 2 and f".{parts[-1]}" in _COMPRESSED:
        parts.pop()
    found = parts[-1] if len(parts) > 1 else ""
    return found if _LANGUAGE.fullmatch(found) and found.lower() not in _NO_LANGUAGE else None


def _corpora(pairs: Sequence[Files]) -> list[Corpus]:
    """Corpora named after their source files, each name once."""
    corpora: list[Corpus] = []
    for source, target in pairs:
        name = re.sub(r"[^\w.-]+", "-", Path(source).name.split(".")[0])[:60] or "corpus"
        taken = {corpus.name for corpus in corpora}
        number = next(n for n in range(1, len(pairs) + 1) if (name if n == 1 else f"{name}-{n}") not in taken)
        corpora.append(Corpus(name=name if number == 1 else f"{name}-{number}", source=source, target=target))
    return corpora


def _from_one_folder(parts: Mapping[str, Sequence[Corpus]]) -> tuple[str, dict[str, list[Corpus]]]:
    """`data.root`, and the corpora with paths from there: the folder of all files if they share one, else this one."""
    paths = [name for corpora in parts.values() for name in corpus_names(corpora)]
    folders = {os.path.dirname(name) for name in paths}
    root = folders.pop() if len(folders) == 1 else ""

    def moved(corpus: Corpus) -> Corpus:
        names = {
            side: os.path.relpath(getattr(corpus, side), root) if root else getattr(corpus, side) for side in _SIDES
        }
        return corpus.model_copy(update=names)

    return root or ".", {part: [moved(corpus) for corpus in corpora] for part, corpora in parts.items()}
