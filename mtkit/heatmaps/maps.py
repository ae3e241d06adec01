"""What a model looked at over one pair of sentences: views by layer and head, by pieces or words, and alignments.

Free of torch. Layers and heads are counted from 0. Shapes: L layers, H heads, R rows that look, C columns looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mtkit.errors import UsageError

Kind = Literal["cross", "encoder", "decoder"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Floats = NDArray[np.float32]
START, END = "<s>", "</s>"
_WORD_START = "\u2581"


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """One heat map: weights_RC, each row of which sums to 1, with the text of rows and columns.

    `aligned_rows` and `aligned_columns` leave out tags and the starts and ends of sentences.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    weights_RC: Floats
    aligned_rows: range
    aligned_columns: range

    def alignment(self) -> list[tuple[int, int]]:
        """(column, row) of the largest weight of each aligned row, in their order, both counted from the first aligned.

        A row that looks at none of the aligned columns has none.
        """
        rows, columns = self.aligned_rows, self.aligned_columns
        part = self.weights_RC[rows.start : rows.stop, columns.start : columns.stop]
        return [(int(weights.argmax()), row) for row, weights in enumerate(part) if weights.size and weights.max() > 0]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMaps:
    """All weights of one pair. `own` says that the target is the model's own translation.

    `source_pieces` begin with `tags` tags; both lists of pieces leave out the ends of the sentences. `weights` hold one
    array_LHRC a kind. encoder: from source to source; decoder: from the word that is being chosen to those before it,
    the first column being the start; cross: from the word that is being chosen to the source. The sources and the
    target that is chosen include the end of the sentence.
    """

    source: str
    target: str
    source_pieces: Sequence[str]
    target_pieces: Sequence[str]
    tags: int
    own: bool
    weights: Mapping[Kind, Floats]

    def labels(self, kind: Kind) -> tuple[list[str], list[str]]:
        """The pieces of rows and of columns."""
        source, chosen = [*self.source_pieces, END], [*self.target_pieces, END]
        match kind:
            case "encoder":
                return source, source
            case "decoder":
                return chosen, [START, *self.target_pieces]
            case "cross":
                return chosen, source

    def view(self, kind: Kind = "cross", layer: int | None = None, head: int | None = None) -> View:
        """The heat map of one layer (None: the last) and head (None: the mean of all).

        Raises UsageError for a layer or head that the model does not have.
        """
        weights_LHRC = self.weights[kind]
        layers, heads = weights_LHRC.shape[:2]
        _check("layer", layer, layers, kind)
        _check("head", head, heads, kind)
        layer = layers - 1 if layer is None else layer
        weights_HRC = weights_LHRC[layer]
        rows, columns = self.labels(kind)
        return View(
            title=f"{kind}, layer {layer}, {'mean of heads' if head is None else f'head {head}'}",
            rows=rows,
            columns=columns,
            weights_RC=weights_HRC.mean(0) if head is None else weights_HRC[head],
            aligned_rows=range(self.tags if kind == "encoder" else 0, len(rows) - 1),
            aligned_columns=range(1, len(columns)) if kind == "decoder" else range(self.tags, len(columns) - 1),
        )


def _check(what: str, number: int | None, count: int, kind: Kind) -> None:
    if number is not None and not 0 <= number < count:
        raise UsageError(
            f"{what} {number}: this model's {kind} attention has {count} {what}s, 0 to {count - 1}",
            "layers and heads are counted from 0",
        )


def by_words(view: View) -> View:
    """The view over words instead of pieces: sums of columns, means of rows (Koehn and Knowles 2017, section 3.6).

    A word begins at each piece that begins with "▁"; tags, starts and ends stay by themselves. Text without spaces is
    one word.
    """
    rows, columns = _words(view.rows, view.aligned_rows), _words(view.columns, view.aligned_columns)
    sums_RC = np.stack([view.weights_RC[:, group].sum(1) for group in columns], axis=1)
    return View(
        title=f"{view.title}, by words",
        rows=_joined(view.rows, rows),
        columns=_joined(view.columns, columns),
        weights_RC=np.stack([sums_RC[group].mean(0) for group in rows]),
        aligned_rows=_moved(view.aligned_rows, rows),
        aligned_columns=_moved(view.aligned_columns, columns),
    )


def _words(pieces: Sequence[str], within: range) -> list[list[int]]:
    """The indices of each word's pieces; pieces outside `within` are words by themselves."""
    groups: list[list[int]] = []
    for index, piece in enumerate(pieces):
        first = index not in within or index == within.start
        # A bare word start is no word: it belongs to what follows, or at the end to what was before.
        bare = not first and "".join(pieces[i] for i in groups[-1]) == _WORD_START
        last = piece == _WORD_START and index + 1 == within.stop
        if first or (piece.startswith(_WORD_START) and not bare and not last):
            groups.append([index])
        else:
            groups[-1].append(index)
    return groups


def _moved(within: range, groups: Sequence[Sequence[int]]) -> range:
    """Where the words of the pieces in `within` are."""
    inside = [word for word, group in enumerate(groups) if group[0] in within]
    return range(inside[0], inside[-1] + 1) if inside else range(0)


def _joined(pieces: Sequence[str], groups: Sequence[Sequence[int]]) -> list[str]:
    return ["".join(pieces[index] for index in group).replace(_WORD_START, "") for group in groups]


def pharaoh(alignment: Sequence[tuple[int, int]]) -> str:
    """An alignment in Pharaoh format: source-target, counted from 0.

    >>> pharaoh([(0, 0), (2, 1)])
    '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in alignment)
