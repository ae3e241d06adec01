"""Which scripts a language is written in, and which lines are written in others."""

import re
import unicodedata
from collections.abc import Sequence

_LATIN = (
    "af az bs ca ceb cs cy da de en eo es et eu fi fil fo fr ga gd gl ha hr hu id ig is it jv la lb lt lv mg mi ms mt "
    "nb nl nn no oc pl pt rm ro rw sk sl sn so sq su sv sw tl tn tr uz vi wo xh yo zu "
    "afr cat ces dan deu eng est eus fin fra gle glg hrv hun ind isl ita lat lav lit mlt nld nob nno nor pol "
    "por ron slk slv spa sqi swe swa tur vie"
)
_CYRILLIC = "be bg kk ky mk mn ru tg tt uk bel bul kaz kir mkd mon rus tgk tat ukr"
_ARABIC = "ar fa ps ur ug sd ckb ara fas pes pus urd uig snd arb"
_DEVANAGARI = "hi mr ne sa hin mar nep npi san"
_OTHERS = {
    "zh": "CJK BOPOMOFO",
    "ja": "CJK HIRAGANA KATAKANA",
    "ko": "HANGUL CJK",
    "el": "GREEK",
    "he": "HEBREW",
    "yi": "HEBREW",
    "hy": "ARMENIAN",
    "ka": "GEORGIAN",
    "am": "ETHIOPIC",
    "ti": "ETHIOPIC",
    "th": "THAI",
    "lo": "LAO",
    "my": "MYANMAR",
    "km": "KHMER",
    "bn": "BENGALI",
    "as": "BENGALI",
    "pa": "GURMUKHI",
    "gu": "GUJARATI",
    "or": "ORIYA",
    "ta": "TAMIL",
    "te": "TELUGU",
    "kn": "KANNADA",
    "ml": "MALAYALAM",
    "si": "SINHALA",
    "bo": "TIBETAN",
    "dv": "THAANA",
    "sr": "CYRILLIC LATIN",
}
_LONG_CODES = {
    **dict.fromkeys(("zho", "cmn", "yue", "chi"), "zh"),
    **dict.fromkeys(("jpn",), "ja"),
    **dict.fromkeys(("kor",), "ko"),
    **{"ell": "el", "heb": "he", "hye": "hy", "kat": "ka", "amh": "am", "tha": "th", "mya": "my", "khm": "km"},
    **{"ben": "bn", "pan": "pa", "guj": "gu", "tam": "ta", "tel": "te", "kan": "kn", "mal": "ml", "sin": "si"},
    **{"srp": "sr", "lao": "lo"},
}
_SCRIPT_CODES = {
    "Latn": "LATIN",
    "Cyrl": "CYRILLIC",
    "Arab": "ARABIC",
    "Deva": "DEVANAGARI",
    "Hans": _OTHERS["zh"],
    "Hant": _OTHERS["zh"],
    "Hani": _OTHERS["zh"],
    "Jpan": _OTHERS["ja"],
    "Kore": _OTHERS["ko"],
    "Hang": _OTHERS["ko"],
    "Grek": "GREEK",
    "Hebr": "HEBREW",
}
_LEAST_LETTERS = 3  # "OK" and "TV" stand alone in any language


def expected_scripts(language: str | None) -> frozenset[str] | None:
    """The scripts of a language, as the first words of Unicode character names; None where it is not known.

    A code may name its script, as in sr-Latn or zho_Hans.

    >>> sorted(expected_scripts("ja"))
    ['CJK', 'HIRAGANA', 'KATAKANA']
    """
    if language is None:
        return None
    code, *subtags = re.split("[-_]", language)
    for subtag in subtags:
        if subtag.title() in _SCRIPT_CODES:
            return frozenset(_SCRIPT_CODES[subtag.title()].split())
    code = code.lower()
    names = _OTHERS.get(_LONG_CODES.get(code, code))
    if names is not None:
        return frozenset(names.split())
    for codes, script in (
        (_LATIN, "LATIN"),
        (_CYRILLIC, "CYRILLIC"),
        (_ARABIC, "ARABIC"),
        (_DEVANAGARI, "DEVANAGARI"),
    ):
        if code in codes.split():
            return frozenset({script})
    return None


def script_of(character: str) -> str | None:
    """The script of a letter, as the first word of its Unicode name; None for what belongs to no script.

    >>> script_of("ж"), script_of("語"), script_of("7")
    ('CYRILLIC', 'CJK', None)
    """
    if unicodedata.category(character) not in ("Lu", "Ll", "Lt", "Lo"):
        return None
    # Full-width letters, and signs such as the micro sign or mathematical letters, are what they stand for.
    plain = unicodedata.normalize("NFKC", character)[0]
    first = unicodedata.name(plain, "").split(" ")[0]
    if unicodedata.category(plain)[0] != "L" or plain in "µªºΩ" or first in ("MATHEMATICAL", "MODIFIER", ""):
        return None
    return first


class _Kinds(dict[int, str | None]):
    """For str.translate: "a" for letters of the expected scripts, "x" for other letters, nothing for the rest."""

    def __init__(self, expected: frozenset[str]) -> None:
        super().__init__()
        self._expected = expected

    def __missing__(self, code: int) -> str | None:
        script = script_of(chr(code))
        kind = None if script is None else "a" if script in self._expected else "x"
        self[code] = kind
        return kind


class WrongScript:
    """Tells lines that are not written in a language's script."""

    def __init__(self, expected: frozenset[str]) -> None:
        self._kinds = _Kinds(expected)
        self._latin = "LATIN" in expected

    def __call__(self, text: str) -> bool:
        """Whether more than half of the letters, and at least 3, are of other scripts than the expected ones.

        >>> WrongScript(frozenset({"LATIN"}))("Добрый день, Anna")
        True
        """
        if self._latin and text.isascii():
            return False
        kinds = text.translate(self._kinds)
        wrong = kinds.count("x")
        return wrong >= _LEAST_LETTERS and 2 * wrong > len(kinds)


def told(scripts: Sequence[str] | frozenset[str]) -> str:
    """Scripts in words, for messages.

    >>> told({"LATIN", "CYRILLIC"})
    'Cyrillic or Latin'
    """
    return " or ".join(sorted("Han" if name == "CJK" else name.title() for name in scripts))
