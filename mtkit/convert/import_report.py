"""What there is to say of an imported model, and how it compares with the toolkit it comes from."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch

from mtkit.checkpoint import load_model
from mtkit.convert.to_huggingface import huggingface_search
from mtkit.convert.transformers_answers import require_transformers, transformers_answers
from mtkit.convert.verify import answers, compare
from mtkit.files import read_lines
from mtkit.model.transformer import count_parameters
from mtkit.translator import Translator

_VERIFY_LINES = 100


def report(folder: Path, output: Path, verify: Path | None) -> Iterator[str]:
    """Yield lines: what was written, and, given lines to `verify` on, how it agrees with transformers on `folder`.

    Raises UsageError when transformers would be needed and is not installed.
    """
    translator = Translator.load(output, "cpu")
    model = load_model(output, torch.device("cpu"))[0]
    languages, size = translator.recipe.languages, translator.tokenizers.target.size
    yield (
        f"{output}: {languages.source} -> {languages.target}, {count_parameters(model):,} parameters, "
        f"vocabulary of {size:,}"
    )
    if verify is None:
        return
    require_transformers()
    lines = list(islice((line for line in read_lines(verify) if line.strip()), _VERIFY_LINES))
    search = huggingface_search(translator.recipe)
    agreement = compare(lambda: answers(translator, lines, search), lambda: transformers_answers(folder, lines, search))
    yield f"{verify}: {agreement}"
