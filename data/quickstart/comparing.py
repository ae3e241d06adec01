"""Comparison: 比, 没有, 一样, 最, and 又 ... 又 ..."""

from __future__ import annotations

import lexicon
from english import comparative, predicate, superlative
from grammar import Pair, construction
from phrases import BE, Phrase, Phrases


def _compare(
    g: Phrases, zh: tuple[str, str], en: tuple[str, str], agreement: str, adjective: lexicon.Adjective
) -> Pair:
    """A 比 B 高, A 比 B 高得多, A 比 B 高一点儿, A 没有 B 高, A 跟 B 一样高."""
    more = comparative(adjective.en)
    is_ = predicate(BE, "present", agreement)
    a, b = zh
    match g.rng.randrange(8):
        case 0:
            return f"{a}没有{b}{adjective.zh}", f"{en[0]} {is_} not as {adjective.en} as {en[1]}"
        case 1:
            return f"{a}跟{b}一样{adjective.zh}", f"{en[0]} {is_} as {adjective.en} as {en[1]}"
        case 2:
            return f"{a}比{b}{adjective.zh}得多", f"{en[0]} {is_} much {more} than {en[1]}"
        case 3:
            return f"{a}比{b}{adjective.zh}一点儿", f"{en[0]} {is_} a little {more} than {en[1]}"
        case 4:
            return f"{a}比{b}更{adjective.zh}", f"{en[0]} {is_} even {more} than {en[1]}"
        case _:
            return f"{a}比{b}{adjective.zh}", f"{en[0]} {is_} {more} than {en[1]}"


@construction(40)
def comparing_people(g: Phrases) -> Pair:
    subject = g.subject()
    other = g.other(subject)
    adjective = g.pick([lexicon.ADJECTIVES[n] for n in lexicon.GROUP_ADJECTIVES["person"].split()])
    g.combine("adjective-noun", adjective.zh, subject.word)
    return _compare(g, (subject.zh, other.zh), (subject.en, other.as_object), subject.agreement, adjective)


@construction(40)
def comparing_things(g: Phrases) -> Pair:
    noun = g.noun(lexicon.DESCRIBED)
    adjective = g.adjective(noun)
    match g.rng.randrange(3):
        case 0:
            first, second = (g.counted(noun, kind) for kind in g.pick((("this", "that"), ("that", "this"))))
        case 1 if noun.group not in lexicon.NOT_OWNED:
            (zh1, en1), (zh2, en2) = g.owner(), g.owner()
            while zh1 == zh2:
                zh2, en2 = g.owner()
            first = Phrase(f"{zh1}{noun.zh}", f"{en1} {noun.en}", noun.agreement)
            second = Phrase(f"{zh2}{noun.zh}", f"{en2} {noun.en}", noun.agreement)
        case _:
            rival = g.pick([n for n in lexicon.NOUNS[noun.group] if n is not noun] or [noun])
            kinds = ("this", "that") if rival is noun else g.pick((("this", "this"), ("that", "that")))
            first, second = g.counted(noun, kinds[0]), g.counted(rival, kinds[1])
    return _compare(g, (first.zh, second.zh), (first.en, second.en), first.agreement, adjective)


@construction(16)
def best(g: Phrases) -> Pair:
    """最: the superlative."""
    if g.chance(0.5):
        subject = g.subject(pronouns=0.2)
        adjective = g.pick([lexicon.ADJECTIVES[n] for n in lexicon.GROUP_ADJECTIVES["person"].split()])
        scope, scope_en = g.pick(
            (
                ("我们班", "in our class"),
                ("这个村子", "in this village"),
                ("我家", "in my family"),
                ("他们班", "in their class"),
            )
        )
        is_ = predicate(BE, "present", subject.agreement)
        return f"{subject.zh}是{scope}最{adjective.zh}的人", _best_person(subject, is_, adjective.en, scope_en)
    noun = g.noun(lexicon.DESCRIBED)
    adjective = g.adjective(noun)
    city, city_en = g.pick(g.cities())
    if g.chance(0.5):
        place = g.pick([p for p in lexicon.PLACES["visit"] + lexicon.PLACES["eating"] + lexicon.PLACES["park"][:1]])
        adjective = lexicon.ADJECTIVES[g.pick(lexicon.GROUP_ADJECTIVES["place"].split())]
        return (
            f"这是{city}最{adjective.zh}的{place.zh}",
            f"this is the {superlative(adjective.en)} {place.en} in {city_en}",
        )
    verb_ = "are" if noun.agreement == "p" else "is"
    subject_en = "these" if noun.agreement == "p" else "this"
    return (
        f"这是我见过的最{adjective.zh}的{noun.zh}",
        f"{subject_en} {verb_} the {superlative(adjective.en)} {noun.en} that I have ever seen",
    )


def _best_person(subject: Phrase, is_: str, adjective: str, scope: str) -> str:
    people = "people" if subject.agreement == "p" else "person"
    return f"{subject.en} {is_} the {superlative(adjective)} {people} {scope}"


OPPOSITES = {frozenset(pair.split()) for pair in (
    ["新 旧", "大 小", "便宜 贵", "厚 薄", "长 短", "轻 重", "干净 脏", "甜 酸", "胖 瘦", "难 简单", "快 慢", "瘦 大", "聪明 胖", "旧 干净", "旧 便宜"])}  # fmt: skip


@construction(16)
def both(g: Phrases) -> Pair:
    """又 ... 又 ...: both ... and ..."""
    noun = g.noun(lexicon.DESCRIBED)
    thing = g.definite(noun, 0)
    first = g.adjective(noun)
    second = g.adjective(noun)
    while second is first or frozenset((first.zh, second.zh)) in OPPOSITES:
        g.combinations.discard(("adjective-noun", second.zh, noun.zh))
        g.combine("adjective-noun", first.zh, noun.zh)
        second = g.adjective(noun)
    is_ = predicate(BE, "present", thing.agreement)
    return f"{thing.zh}又{first.zh}又{second.zh}", f"{thing.en} {is_} both {first.en} and {second.en}"
