"""English word forms and word order: the few rules the grammar needs, and the irregular words by name."""

from __future__ import annotations

from dataclasses import dataclass

VOWELS = "aeiou"

# Regular spelling covers the rest (box -> boxes, story -> stories).
IRREGULAR_PLURALS = {
    "child": "children", "man": "men", "woman": "women", "mouse": "mice", "sheep": "sheep", "fish": "fish",
    "knife": "knives", "scarf": "scarves", "wolf": "wolves", "potato": "potatoes", "tomato": "tomatoes",
}  # fmt: skip

# base: (past, participle); an -ing form only where the spelling rule fails.
IRREGULAR_VERBS = {
    "be": ("was", "been"), "have": ("had", "had"), "do": ("did", "done"), "go": ("went", "gone"),
    "buy": ("bought", "bought"), "sell": ("sold", "sold"), "eat": ("ate", "eaten"), "drink": ("drank", "drunk"),
    "make": ("made", "made"), "read": ("read", "read"), "write": ("wrote", "written"), "wear": ("wore", "worn"),
    "draw": ("drew", "drawn"), "feed": ("fed", "fed"), "send": ("sent", "sent"), "give": ("gave", "given"),
    "bring": ("brought", "brought"), "take": ("took", "taken"), "ride": ("rode", "ridden"),
    "drive": ("drove", "driven"), "lose": ("lost", "lost"), "find": ("found", "found"), "see": ("saw", "seen"),
    "meet": ("met", "met"), "know": ("knew", "known"), "think": ("thought", "thought"), "say": ("said", "said"),
    "tell": ("told", "told"), "teach": ("taught", "taught"), "speak": ("spoke", "spoken"), "sing": ("sang", "sung"),
    "swim": ("swam", "swum"), "run": ("ran", "run"), "sleep": ("slept", "slept"), "get": ("got", "gotten"),
    "come": ("came", "come"), "become": ("became", "become"), "leave": ("left", "left"), "put": ("put", "put"),
    "break": ("broke", "broken"), "steal": ("stole", "stolen"), "lend": ("lent", "lent"), "grow": ("grew", "grown"),
    "cost": ("cost", "cost"), "forget": ("forgot", "forgotten"),
}  # fmt: skip
DOUBLING = {"swim", "run", "get", "put", "shop", "chat", "plan", "forget"}

IRREGULAR_COMPARISON = {"good": ("better", "best"), "far": ("farther", "farthest")}
# These take -er and -est; all other adjectives take more and most.
SHORT = """
big brave busy cheap clean cold cool cute dirty easy fast fat fresh friendly handy happy healthy heavy high
hot hungry kind light lively long narrow new old quiet rich safe short simple slow small smart sour strong
sweet tall tasty thick thin ugly warm wide young
"""
SHORT_ADJECTIVES = set(SHORT.split())
DOUBLING_ADJECTIVES = {"big", "fat", "hot", "thin"}


@dataclass(frozen=True)
class Verb:
    """The five forms of an English verb, and the words that follow it unchanged ("for" in "look for")."""

    base: str
    third: str
    past: str
    participle: str
    ing: str
    rest: str = ""


def plural(noun: str) -> str:
    """The plural of a noun phrase whose last word is the noun, as plural("story") == "stories"."""
    head, _, last = noun.rpartition(" ")
    if last in IRREGULAR_PLURALS:
        form = IRREGULAR_PLURALS[last]
    elif last.endswith(("s", "x", "ch", "sh")):
        form = last + "es"
    elif last.endswith("y") and last[-2] not in VOWELS:
        form = last[:-1] + "ies"
    else:
        form = last + "s"
    return f"{head} {form}".strip()


def verb(text: str) -> Verb:
    """The forms of `text`, whose first word is inflected, as verb("look for").past == "looked"."""
    base, _, rest = text.partition(" ")
    stem_y = base.endswith("y") and base[-2] not in VOWELS
    if base == "have":
        third = "has"
    elif stem_y:
        third = base[:-1] + "ies"
    else:
        third = base + ("es" if base.endswith(("s", "x", "ch", "sh", "o")) else "s")
    doubled = base + base[-1] if base in DOUBLING else base
    silent_e = base.endswith("e") and not base.endswith(("ee", "be", "ye"))
    ing = base[:-1] + "ing" if silent_e else doubled + "ing"
    if base in IRREGULAR_VERBS:
        past, participle = IRREGULAR_VERBS[base]
    else:
        past = base[:-1] + "ied" if stem_y else base + "d" if base.endswith("e") else doubled + "ed"
        participle = past
    return Verb(base, third, past, participle, ing, rest)


def article(noun: str) -> str:
    """`noun` behind "a" or "an": article("old hat") == "an old hat"."""
    vowel = (noun.startswith(tuple(VOWELS)) and not noun.startswith(("uni", "use"))) or noun.startswith("hour")
    return f"{'an' if vowel else 'a'} {noun}"


def comparative(adjective: str) -> str:
    """comparative("tall") == "taller", comparative("expensive") == "more expensive"."""
    return _degree(adjective, 0, "er", "more")


def superlative(adjective: str) -> str:
    """superlative("tall") == "tallest", superlative("expensive") == "most expensive"."""
    return _degree(adjective, 1, "est", "most")


def _degree(adjective: str, index: int, ending: str, word: str) -> str:
    if adjective in IRREGULAR_COMPARISON:
        return IRREGULAR_COMPARISON[adjective][index]
    if adjective not in SHORT_ADJECTIVES:
        return f"{word} {adjective}"
    if adjective in DOUBLING_ADJECTIVES:
        return adjective + adjective[-1] + ending
    if adjective.endswith("y"):
        return adjective[:-1] + "i" + ending
    return adjective.removesuffix("e") + ending


def _be(agreement: str, past: bool = False) -> str:
    if past:
        return "was" if agreement in ("1", "3") else "were"
    return {"1": "am", "3": "is"}.get(agreement, "are")


def _finite(verb_: Verb, tense: str, agreement: str) -> tuple[str, str]:
    """(auxiliary, main verb); the auxiliary "do" stands where a plain tense would show none."""
    if verb_.base == "be" and tense in ("present", "past"):
        return _be(agreement, tense == "past"), ""
    match tense:
        case "present":
            return ("does" if agreement == "3" else "do"), verb_.base
        case "past":
            return "did", verb_.base
        case "progressive":
            return _be(agreement), verb_.ing
        case "past progressive":
            return _be(agreement, past=True), verb_.ing
        case "perfect":
            return ("has" if agreement == "3" else "have"), verb_.participle
        case "going":
            return _be(agreement), f"going to {verb_.base}"
        case "passive":
            return _be(agreement, past=True), verb_.participle
        case _:  # "will", "can", "should", "must", "may": the modal is its own name
            return tense, verb_.base


def join(*words: str) -> str:
    """The words that are not empty, with one space between them."""
    return " ".join(word for word in words if word)


def predicate(verb_: Verb, tense: str, agreement: str, negative: bool = False, adverb: str = "") -> str:
    """The verb group of a statement: predicate(verb("go"), "past", "3", negative=True) == "did not go"."""
    auxiliary, main = _finite(verb_, tense, agreement)
    plain = tense in ("present", "past") and verb_.base != "be"
    if plain and not negative:
        main = verb_.past if tense == "past" else verb_.third if agreement == "3" else verb_.base
        return join(adverb, main, verb_.rest)
    return join(auxiliary, "not" if negative else "", adverb, main, verb_.rest)


def question(subject: str, verb_: Verb, tense: str, agreement: str, adverb: str = "") -> str:
    """The verb group of a question around its subject: "did he go", "has she ever eaten"."""
    auxiliary, main = _finite(verb_, tense, agreement)
    return join(auxiliary, subject, adverb, main, verb_.rest)
