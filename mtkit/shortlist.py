"""A lexical shortlist: for each source token the few target tokens that can be wanted in its translation.

The file is safetensors, arrays of uint32 (`targets`, `ends`, `always`), with what it belongs to in its metadata.

Shapes: S source vocabulary, C entries of all lists end to end, U ids of a union, A ids that belong to every union.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mtkit.errors import ModelError
from mtkit.files import atomic_write
from mtkit.folders import SHORTLIST_FILE, RunFolder, find_model
from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.lineage import fingerprint
from mtkit.text.tokenizer import Tokenizers

FORMAT = 1
_FACTS = "mtkit"
_SPECIAL = (PAD, UNK, BOS, EOS)
_REMEDY = "make it again with: mtkit shortlist RECIPE"


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The lists of all source tokens: that of token i is `targets_C[ends_S[i - 1] : ends_S[i]]`.

    `always_A` are the special ids and the most frequent target ids. `per_token` and `frequent` are what was asked for.
    """

    targets_C: np.ndarray
    ends_S: np.ndarray
    always_A: np.ndarray
    target_size: int
    tokenizer_sha256: str
    per_token: int
    frequent: int

    @classmethod
    def of(
        cls, lists: Sequence[np.ndarray], always: np.ndarray, tokenizers: Tokenizers, per_token: int, frequent: int
    ) -> "Shortlist":
        """The shortlist with these target ids for each source id, and these in every union besides the special ids."""
        assert len(lists) == tokenizers.source.size
        return cls(
            targets_C=np.concatenate(lists).astype(np.uint32),
            ends_S=np.cumsum([len(each) for each in lists]).astype(np.uint32),
            always_A=np.union1d(always, _SPECIAL).astype(np.uint32),
            target_size=tokenizers.target.size,
            tokenizer_sha256=tokenizers.sha256,
            per_token=per_token,
            frequent=frequent,
        )

    def union(self, rows: Iterable[Sequence[int]], also: Iterable[Sequence[int]] = ()) -> np.ndarray:
        """All target ids on the lists of the tokens of these rows, those of `also`, and those of every union.

        Ascending, so the special ids keep their numbers; depends on which tokens there are and not on their order.
        """
        wanted = np.zeros(self.target_size, bool)
        wanted[self.always_A] = True
        for ids in also:
            wanted[list(ids)] = True
        for token in {token for row in rows for token in row}:
            first = int(self.ends_S[token - 1]) if token else 0
            wanted[self.targets_C[first : int(self.ends_S[token])]] = True
        return np.flatnonzero(wanted)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, atomically; equal lists give equal bytes."""
        arrays = {"targets": self.targets_C, "ends": self.ends_S, "always": self.always_A}
        facts: dict[str, Any] = {
            "format": FORMAT,
            "tokenizer_sha256": self.tokenizer_sha256,
            "per_token": self.per_token,
            "frequent": self.frequent,
            "target_size": self.target_size,
        }
        facts["content_sha256"] = _content_sha256(facts, arrays)
        with atomic_write(path, "wb") as stream:
            # In one entry, for safetensors writes several in any order.
            stream.write(save(arrays, {_FACTS: json.dumps(facts, sort_keys=True)}))

    @classmethod
    def load(cls, path: Path, tokenizers: Tokenizers) -> "Shortlist":
        """The shortlist in a file. Raises ModelError when it is missing, damaged, or of another tokenizer."""
        if not path.is_file():
            raise ModelError(
                f"{path}: no such file, the model has no shortlist", "make it with: mtkit shortlist RECIPE"
            )
        try:
            with safe_open(path, framework="numpy") as file:
                facts = json.loads((file.metadata() or {})[_FACTS])
                arrays = {name: file.get_tensor(name) for name in ("targets", "ends", "always")}
            version, sizes = int(facts["format"]), [int(facts[key]) for key in ("target_size", "per_token", "frequent")]
            tokenizer_sha256, content_sha256 = facts["tokenizer_sha256"], facts.pop("content_sha256")
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{path}: is not a shortlist, or is damaged ({error})", _REMEDY) from None
        if version > FORMAT:
            raise ModelError(
                f"{path}: has format {version}, this mtkit reads up to {FORMAT}", "update mtkit to read it"
            )
        if _content_sha256(facts, arrays) != content_sha256:
            raise ModelError(f"{path}: its contents do not match their hash; the file is damaged", _REMEDY)
        if tokenizer_sha256 != tokenizers.sha256:
            raise ModelError(
                f"{path} belongs to the tokenizer with SHA-256 {tokenizer_sha256}, the model's has {tokenizers.sha256}",
                _REMEDY,
            )
        made = cls(arrays["targets"], arrays["ends"], arrays["always"], sizes[0], tokenizer_sha256, *sizes[1:])
        if not made._fits(tokenizers):
            raise ModelError(f"{path}: its lists do not fit the vocabularies", _REMEDY)
        return made

    def _fits(self, tokenizers: Tokenizers) -> bool:
        """Whether the lists are those of these vocabularies, and hold nothing that is not an id."""
        return (
            len(self.ends_S) == tokenizers.source.size
            and self.target_size == tokenizers.target.size
            and bool((np.diff(self.ends_S.astype(np.int64), prepend=0) >= 0).all())
            and int(self.ends_S[-1]) == len(self.targets_C)
            and int(max(self.targets_C.max(initial=0), self.always_A.max(initial=0))) < self.target_size
            and set(_SPECIAL) <= set(self.always_A.tolist())
        )


def load_shortlist(folder: Path, tokenizers: Tokenizers) -> Shortlist:
    """The shortlist of a model, run or checkpoint folder; a checkpoint has that of its run's model.

    Raises ModelError when there is none, or as `Shortlist.load`.
    """
    weights, home = find_model(folder)
    place = home if home == weights.parent else RunFolder(home).model
    return Shortlist.load(place / SHORTLIST_FILE, tokenizers)


def _content_sha256(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    content = hashlib.sha256(fingerprint(dict(facts)).encode())
    for name in sorted(arrays):
        content.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        content.update(np.ascontiguousarray(arrays[name]).tobytes())
    return content.hexdigest()
