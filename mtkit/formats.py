"""Translations as lines of output: plain text, Moses n-best lists, JSON lines; and JSON lines of input.

Torch-free, stands on row 2. No line that is written here holds a line separator or control character of its own.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mtkit.errors import DataError
from mtkit.translation import Line, TextHypothesis, Translation

# JSON leaves these raw, and readers that split at more than LF break on them. They can only stand inside a string.
_RISKY_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")


# fmt: off
OUTPUT_KEYS = frozenset([
    "line", "status", "source", "source_pieces", "parts", "unknown_tokens", "cut_tokens", "n_best", "text", "score",
    "normalized_score", "log_probability", "finished", "repeats", "tokens", "token_log_probabilities",
    "end_log_probabilities", "alignment", "models_sha256",
])
# fmt: on
"""What `json_line` writes besides `id`; keys of the input by these names give way."""


def text_line(translation: Translation) -> str:
    """The best translation as one line."""
    return translation.text + "\n"


def alignment_line(translation: Translation) -> str:
    """The alignment of the best translation as one line of Pharaoh pairs, such as `0-0 2-1`; blank for a blank line."""
    return _pharaoh(translation.hypotheses[0]) + "\n"


def _pharaoh(hypothesis: TextHypothesis) -> str:
    return " ".join(f"{source}-{target}" for source, target in hypothesis.alignment or ())


def n_best_lines(translation: Translation) -> str:
    """All hypotheses in the n-best format of Moses: `id ||| text ||| features ||| score`, one a line, best first.

    `id` counts lines from 0. The features are `logprob=`, the log-probability, and `length=`, its number of tokens,
    ends included. A `|||` within the text is written `&#124;&#124;&#124;`, as Moses escapes it.
    """
    lines = []
    for hypothesis in translation.hypotheses:
        text = hypothesis.text.replace("|||", "&#124;&#124;&#124;")
        features = f"logprob= {hypothesis.log_probability:.6f} length= {hypothesis.length}"
        lines.append(f"{translation.number - 1} ||| {text} ||| {features} ||| {hypothesis.score:.6f}\n")
    return "".join(lines)


def json_line(translation: Translation, models_sha256: Sequence[str] = ()) -> str:
    """One JSON object on one line; `mtkit translate --help` lists its keys.

    The keys of the input come first and unchanged, `id` among them; where one has the name of an output key, the
    output key stands. `models_sha256` are the hashes of the weights that have translated.
    """
    record: dict[str, Any] = {"id": translation.number - 1}
    record.update(translation.line.extra)
    record["line"] = translation.number
    record["status"] = translation.status
    record["source"] = translation.source
    record["source_pieces"] = list(translation.source_pieces or ())
    record["parts"] = translation.parts
    record["unknown_tokens"] = translation.unknown_tokens
    record["cut_tokens"] = translation.cut_tokens
    record.update(_fields(translation.hypotheses[0]))
    record["n_best"] = [_fields(hypothesis) for hypothesis in translation.hypotheses]
    record["models_sha256"] = list(models_sha256)
    return dump_json_line(record)


def dump_json_line(record: dict[str, Any]) -> str:
    """The record as JSON on one line, with nothing in it that any reader takes for the end of a line."""
    text = json.dumps(record, ensure_ascii=False, separators=(", ", ": "))
    return _RISKY_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def parse_json_lines(lines: Iterable[str], name: str) -> Iterator[Line]:
    """Lines to translate from JSON objects `{"text": ..., "prefix": ..., any other keys}`, one a line.

    `prefix` may be left out. Raises DataError naming the line that is not such an object.
    """
    hint = 'every line is an object such as {"text": "a sentence"}; "prefix" and other keys may follow'
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            where = f"{name}:{number}:{error.colno}" if isinstance(error, json.JSONDecodeError) else f"{name}:{number}"
            raise DataError(f"{where}: not JSON ({getattr(error, 'msg', error)})", hint) from None
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise DataError(f'{name}:{number}: not an object whose "text" is a string', hint)
        text, prefix = record.pop("text"), record.pop("prefix", "")
        if not isinstance(prefix, str):
            raise DataError(f'{name}:{number}: "prefix" is not a string', hint)
        yield Line(text, prefix, record)


def _fields(hypothesis: TextHypothesis) -> dict[str, Any]:
    """What JSON tells of one hypothesis; `normalized_score` is the mean log-probability of a token, ends included."""
    return {
        "text": hypothesis.text,
        "score": hypothesis.score,
        "normalized_score": hypothesis.log_probability / max(1, hypothesis.length),
        "log_probability": hypothesis.log_probability,
        "finished": hypothesis.finished,
        "repeats": hypothesis.looped,
        "tokens": list(hypothesis.tokens or ()),
        "token_log_probabilities": list(hypothesis.token_log_probabilities),
        "end_log_probabilities": list(hypothesis.end_log_probabilities),
        "alignment": _pharaoh(hypothesis),
    }
