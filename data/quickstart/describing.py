"""What somebody or something is, and is like."""

from __future__ import annotations

import lexicon
from english import article, comparative, join, predicate
from grammar import Pair, construction
from phrases import BE, Phrases


@construction(40)
def identity(g: Phrases) -> Pair:
    """是: professions and people, behind relative clauses too."""
    negative = g.chance(0.2)
    front = "不是" if negative else "是"
    if g.chance(0.5):
        strangers = [n for n in lexicon.ADULTS if n.zh in ("男人", "女人", "邻居", "客人", "游客")]
        subject = g.person_clause(strangers) if g.chance(0.4) else g.pick((g.pronoun, g.name, g.kin))()
        en = predicate(BE, "present", subject.agreement, negative)
        job = g.pick(lexicon.JOBS)
        plural = subject.agreement == "p"
        count = "" if plural or negative else g.pick(("", f"一{job.measure}"))
        return f"{subject.zh}{front}{count}{job.zh}", join(subject.en, en, job.plural if plural else article(job.en))
    subject = g.person_clause() if g.chance(0.5) else g.subject(adult=True)
    en = predicate(BE, "present", subject.agreement, negative)
    friend = g.pick([n for n in lexicon.FRIENDS if n.zh not in subject.zh])
    owner, _, _, his, _ = g.pick([row for row in lexicon.PRONOUNS if row[0] not in subject.zh])
    name = friend.plural if subject.agreement == "p" else friend.en
    return f"{subject.zh}{front}{owner}的{friend.zh}", join(subject.en, en, his, name)


@construction(50)
def describing_people(g: Phrases) -> Pair:
    """很, 非常, 有点儿, 不: people and their states."""
    clause = g.chance(0.35)
    subject = g.person_clause() if clause else g.subject()
    group = g.pick(("person", "state"))
    adjective = lexicon.ADJECTIVES[g.pick(lexicon.GROUP_ADJECTIVES[group].split())]
    g.combine("adjective-noun", adjective.zh, subject.word)
    time, time_en = (
        g.pick((("今天", "today"), ("昨天", "yesterday"))[: 1 if clause else 2])
        if group == "state" and g.chance(0.4)
        else ("", "")
    )
    past = time == "昨天"
    return degree(g, f"{subject.zh}{time}", subject.en, subject.agreement, adjective, past, time_en)


DEGREES = [("很", "very")] * 3 + [
    ("非常", "extremely"),
    ("真", "really"),
    ("不", "not"),
    ("不太", "not very"),
    ("有点儿", "a little"),
]
# 有点儿 is for what one does not wish.
UNWELCOME = set(
    [
        "贵",
        "难",
        "旧",
        "小",
        "大",
        "长",
        "短",
        "厚",
        "薄",
        "重",
        "慢",
        "脏",
        "酸",
        "甜",
        "远",
        "胖",
        "瘦",
        "矮",
        "累",
        "忙",
        "饿",
        "渴",
        "冷",
        "热",
        "难过",
        "生气",
        "紧张",
        "危险",
    ]
)


def degree(
    g: Phrases, zh: str, en: str, agreement: str, adjective: lexicon.Adjective, past: bool = False, last: str = ""
) -> Pair:
    """An adjective as predicate, with its adverb of degree."""
    choices = DEGREES if adjective.zh in UNWELCOME else DEGREES[:-1]
    front, adverb = g.pick(choices)
    return f"{zh}{front}{adjective.zh}", join(
        en, predicate(BE, "past" if past else "present", agreement), adverb, adjective.en, last
    )


@construction(55)
def describing_things(g: Phrases) -> Pair:
    """Things, behind relative clauses and place phrases too; colours with 是 ... 的; 太 ... 了."""
    noun = g.noun([group for group in lexicon.NOUNS if group in lexicon.GROUP_ADJECTIVES])
    thing = g.definite(noun, 0)
    if g.chance(0.3):
        thing, noun = g.thing_clause()
    names = lexicon.GROUP_ADJECTIVES[noun.group].split()
    colors = [name for name in names if name in lexicon.COLORS]
    adjective = lexicon.ADJECTIVES[g.pick(colors if colors and g.chance(0.4) else names)]
    g.combine("adjective-noun", adjective.zh, noun.zh)
    if adjective.zh in lexicon.COLORS:
        return f"{thing.zh}是{adjective.zh}的", join(thing.en, predicate(BE, "present", thing.agreement), adjective.en)
    if g.chance(0.12) and adjective.zh in (
        "贵",
        "大",
        "小",
        "长",
        "短",
        "热",
        "甜",
        "酸",
        "旧",
        "脏",
        "难",
        "重",
        "慢",
    ):
        return f"{thing.zh}太{adjective.zh}了", join(
            thing.en, predicate(BE, "present", thing.agreement), "too", adjective.en
        )
    return degree(g, thing.zh, thing.en, thing.agreement, adjective)


@construction(45)
def describing_places(g: Phrases) -> Pair:
    """Places: how they are, how they compare, and how far apart (离)."""
    place, other = g.rng.sample(lexicon.GOALS, 2)
    if g.chance(0.25):
        far, far_en = g.pick((("很远", "very far"), ("不远", "not far"), ("太远了", "too far")))
        if g.chance(0.5):
            owner, _, _, his, _ = g.pick(lexicon.PRONOUNS)
            return f"{place.zh}离{owner}家{far}", f"the {place.en} is {far_en} from {his} home"
        return f"{place.zh}离{other.zh}{far}", f"the {place.en} is {far_en} from the {other.en}"
    measure = "家" if place.zh in lexicon.HOUSES else "所" if place.zh == "学校" else "个"
    adjective = g.adjective(place, "place")
    roll = g.rng.randrange(6)
    if roll == 0:
        city, city_en = g.pick(g.cities())
        return degree(g, f"{city}的{place.zh}", f"the {place.en} in {city_en}", "3", adjective)
    if roll == 1:
        return f"这里的{place.zh}比那里的{place.zh}{adjective.zh}", (
            f"the {place.en} here is {comparative(adjective.en)} than the {place.en} there"
        )
    if roll == 2 and adjective.attribute:
        return (
            f"这里有一{measure}{adjective.attribute}{place.zh}",
            f"there is {article(f'{adjective.en} {place.en}')} here",
        )
    which = g.pick((("这", "this"), ("那", "that")))
    return degree(g, which[0] + measure + place.zh, f"{which[1]} {place.en}", "3", adjective)
