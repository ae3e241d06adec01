"""What Hugging Face transformers translates with an exported folder; only to verify an export."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from mtkit.convert.verify import Answer
from mtkit.errors import UsageError
from mtkit.sections.search import Beam, Greedy
from mtkit.text.normalize import normalize

_BATCH = 16


def transformers_version() -> str | None:
    """The version of transformers that is installed; None without it."""
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return None


def require_transformers() -> None:
    """Raise UsageError when transformers is not installed."""
    if transformers_version() is None:
        raise UsageError(
            "transformers is not installed", "install the extra: python -m pip install 'mtkit[huggingface]'"
        )


def transformers_answers(folder: Path, lines: Sequence[str], search: Greedy | Beam) -> list[Answer]:
    """What AutoModelForSeq2SeqLM says, by the folder's generation config and this search's beam."""
    with _quiet():
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    options: dict[str, Any] = {"num_beams": 1, "do_sample": False}
    if isinstance(search, Beam):
        options |= {"num_beams": search.beam_size, "length_penalty": search.length_penalty}
    order = sorted(range(len(lines)), key=lambda place: len(lines[place]))
    found: dict[int, Answer] = {}
    for start in range(0, len(order), _BATCH):
        places = order[start : start + _BATCH]
        batch = tokenizer([normalize(lines[place]) for place in places], return_tensors="pt", padding=True)
        with torch.inference_mode():
            made = model.generate(
                **batch, **options, return_dict_in_generate=True, output_scores=True, output_logits=True
            )
        sums = getattr(made, "sequences_scores", None)
        if sums is None:
            sums = model.compute_transition_scores(made.sequences, made.logits, normalize_logits=True)
            ended = made.sequences[:, 1:] == tokenizer.pad_token_id
            sums = sums.masked_fill(ended, 0.0).sum(1)
        texts = tokenizer.batch_decode(made.sequences, skip_special_tokens=True)
        counts = (made.sequences[:, 1:] != tokenizer.pad_token_id).sum(1)
        for place, text, score, count in zip(places, texts, sums.tolist(), counts.tolist(), strict=True):
            found[place] = Answer(normalize(text), score, count)
    return [found[place] for place in range(len(lines))]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice from transformers on stderr while it reads a folder; no look at the network."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
