"""有 and 在; giving; the object before the verb with 把, the passive with 被, and how it is done with 得."""

from __future__ import annotations

import english
import lexicon
from english import join, predicate, question, verb
from grammar import Pair, construction, timed
from phrases import BE, Phrase, Phrases
from timewords import FUTURE, PAST

SPOTS = [
    ("桌子上", "on the table"), ("椅子上", "on the chair"), ("床上", "on the bed"), ("沙发上", "on the sofa"),
    ("书包里", "in the schoolbag"), ("箱子里", "in the box"), ("床下", "under the bed"), ("桌子下", "under the table"),
    ("门后面", "behind the door"), ("窗户旁边", "next to the window"), ("灯旁边", "next to the lamp"),
]  # fmt: skip
LYING = (
    "books",
    "reference",
    "papers",
    "letters",
    "fruit",
    "clothes",
    "worn",
    "personal",
    "pens",
    "gifts",
    "devices",
    "cutlery",
)


@construction(45)
def existence(g: Phrases) -> Pair:
    """桌子上有一本书: there is, there are."""
    roll = g.rng.randrange(3)
    if roll == 0:
        spot, spot_en = g.pick(SPOTS)
        noun = g.noun(LYING if "下" not in spot else ("pets", "carried", "worn"))
    elif roll == 1:
        place = g.pick(
            [
                *lexicon.PLACES["park"],
                *lexicon.PLACES["nature"],
                *lexicon.PLACES["shore"],
                *lexicon.PLACES["visit"][2:3] * 4,
            ]
        )
        spot, spot_en = place.locative, place.at
        noun = g.noun(("wild",) if place.zh in ("森林", "动物园") else ("pets", "farm"))
    else:
        place = g.pick([p for p in lexicon.GOALS + lexicon.PLACES["square"]])
        spot, spot_en = place.locative, place.at
        noun = g.person_noun()
    if g.chance(0.15):
        there = "no " + noun.plural
        is_ = "is" if noun.unit and noun.agreement == "3" else "are"
        return f"{spot}没有{noun.zh}", f"there {is_} {there} {spot_en}"
    asked = g.chance(0.2)
    kind = g.pick(("one", "one", "number", "number", *(() if asked else ("several", "some", "many"))))
    thing = g.counted(noun, kind, g.modifier(noun, 0.3))
    is_ = "is" if thing.agreement == "3" else "are"
    if asked:
        return f"{spot}有{thing.zh}吗？", f"{is_} there {thing.en} {spot_en}"
    return f"{spot}有{thing.zh}", f"there {is_} {thing.en} {spot_en}"


@construction(40)
def location(g: Phrases) -> Pair:
    """书在桌子上: where things and people are; 桌子上的书 before the noun."""
    negative = g.chance(0.2)
    front = "不在" if negative else "在"
    if g.chance(0.5):
        subject = g.subject()
        place = g.pick([p for group in lexicon.PLACES.values() for p in group])
        g.combine("person-place", subject.word, place.zh)
        is_ = predicate(BE, "present", subject.agreement, negative)
        if g.chance(0.25) and subject.agreement != "1":
            return (
                f"{subject.zh}在{place.locative}吗？",
                f"{predicate(BE, 'present', subject.agreement)} {subject.en} {place.at}",
            )
        return f"{subject.zh}{front}{place.locative}", f"{subject.en} {is_} {place.at}"
    spot, spot_en = g.pick(SPOTS)
    noun = g.noun(LYING)
    if g.chance(0.4):
        thing = Phrase(f"{spot}的{noun.zh}", f"the {noun.en} {spot_en}", noun.agreement)
        zh, his = g.owner()
        is_ = predicate(BE, "present", noun.agreement, negative)
        mine = {"my": "mine", "your": "yours", "his": "his", "her": "hers", "our": "ours", "their": "theirs"}.get(
            his, his
        )
        return f"{thing.zh}{'不是' if negative else '是'}{zh}", f"{thing.en} {is_} {mine}"
    thing = g.definite(noun)
    return f"{thing.zh}{front}{spot}", f"{thing.en} {predicate(BE, 'present', thing.agreement, negative)} {spot_en}"


@construction(30)
def having(g: Phrases) -> Pair:
    """有, 没有: to have."""
    subject = g.subject()
    noun = g.noun(
        (
            "books",
            "worn",
            "devices",
            "vehicles",
            "carried",
            "personal",
            "pens",
            "instruments",
            "pets",
            "farm",
            "furniture",
            "clothes",
        )
    )
    g.combine("verb-object", "有", noun.zh)
    if g.chance(0.25):
        return f"{subject.zh}没有{noun.zh}", join(
            subject.en, predicate(verb("have"), "present", subject.agreement, True), noun.plural
        )
    asked = g.chance(0.2) and subject.agreement != "1"
    thing = g.counted(
        noun, g.pick(("one", "one", "number", *(() if asked else ("several", "many")))), g.modifier(noun, 0.4)
    )
    if asked:
        return f"{subject.zh}有{thing.zh}吗？", join(
            question(subject.en, verb("have"), "present", subject.agreement), thing.en
        )
    return f"{subject.zh}有{thing.zh}", join(
        subject.en, predicate(verb("have"), "present", subject.agreement), thing.en
    )


# Giving, 把, 被, 得

FOR_VERBS = {"买": "for", "做": "for", "画": "for", "写": "to", "寄": "to"}


@construction(45)
def giving(g: Phrases) -> Pair:
    """给: to give; and before another verb "to" or "for"."""
    subject = g.subject()
    taker = g.other(subject)
    time, time_en = g.pick(PAST)
    kinds = ("one", "one", "number", "some")
    if g.chance(0.4):
        noun = g.noun(
            ("gifts", "fruit", "books", "worn", "pens", "sweets", "candy", "clothes", "drinks", "papers", "instruments")
        )
        g.combine("verb-object", "给", noun.zh)
        thing = g.counted(noun, g.pick(kinds), g.modifier(noun, 0.2))
        front, tense, negative = ("给了", "past", False) if g.chance(0.8) else ("要给", "going", False)
        if tense == "going":
            time, time_en = g.pick(FUTURE)
        en = join(
            subject.en, predicate(verb("give"), tense, subject.agreement, negative), taker.as_object, thing.en, time_en
        )
        return timed(g, subject.zh, time, f"{front}{taker.zh}{thing.zh}"), en
    chosen, noun = g.transitive(tuple(FOR_VERBS))
    thing = g.counted(noun, g.pick(kinds), g.modifier(noun, 0.2))
    front, tense = g.pick((("", "past"), ("", "past"), ("想", "want")))
    to = f"{FOR_VERBS[chosen.zh]} {taker.as_object}"
    if tense == "want":
        en = join(subject.en, predicate(verb("want"), "present", subject.agreement), "to", chosen.en.base, thing.en, to)
        return f"{subject.zh}想给{taker.zh}{chosen.zh}{thing.zh}", en
    en = join(subject.en, predicate(chosen.en, "past", subject.agreement), thing.en, to, time_en)
    return timed(g, subject.zh, time, f"给{taker.zh}{chosen.zh}了{thing.zh}"), en


RESULTS = [
    ("借", "走", "borrow", ("books", "vehicles", "carried", "instruments")), ("卖", "掉", "sell", ("vehicles", "devices", "furniture")),
    ("修", "好", "repair", ("vehicles", "devices", "openings", "furniture")), ("打", "破", "break", ("dishware",)),
    ("吃", "完", "finish", ("dishes", "sweets", "candy", "fruit")), ("洗", "干净", "wash", ("clothes", "dishware", "fruit")),
    ("拿", "走", "take away", ("carried", "worn", "papers", "personal")), ("偷", "走", "steal", ("vehicles", "devices", "personal")),
]  # fmt: skip


@construction(50)
def disposal(g: Phrases) -> Pair:
    """把: the object before the verb, and always definite."""
    subject = g.subject(adult=True)
    time, time_en = g.pick((*PAST[:5], ("", ""), ("", ""), ("", "")))
    if g.chance(0.45):
        zh, result, word, groups = g.pick(RESULTS[:-1])
        noun = g.noun(groups)
        thing = g.definite(noun, 0)
        g.combine("verb-object", zh, noun.zh)
        en = english.verb(word)
        if zh in ("修", "吃", "洗") and g.chance(0.3):
            return f"{subject.zh}没把{thing.zh}{zh}{result}", join(
                subject.en, predicate(en, "past", subject.agreement, True), thing.en
            )
        return (
            timed(g, subject.zh, time, f"把{thing.zh}{zh}{result}了"),
            join(subject.en, _carry(en, "past", subject.agreement, thing.en), time_en),
        )
    noun = g.noun(LYING)
    thing = g.definite(noun, 0)
    if g.chance(0.5):
        spot, spot_en = g.pick(SPOTS)
        zh, en, where, where_en = "放", "put", spot, spot_en
    else:
        taker = g.other(subject)
        zh, en = g.pick((("借", "lend"), ("送", "give"), ("寄", "send")))
        where, where_en = taker.zh, f"to {taker.as_object}"
    to = "在" if zh == "放" else "给"
    if g.chance(0.3):
        want = predicate(verb("want"), "present", subject.agreement)
        return f"{subject.zh}想把{thing.zh}{zh}{to}{where}", join(subject.en, want, f"to {en}", thing.en, where_en)
    return timed(
        g, subject.zh, time, f"把{thing.zh}{zh}{to}了{where}" if to == "给" else f"把{thing.zh}放在了{where}"
    ), join(subject.en, predicate(english.verb(en), "past", subject.agreement), thing.en, where_en, time_en)


def _carry(verb_: english.Verb, tense: str, agreement: str, thing: str) -> str:
    """The verb around its object: "took the key away"."""
    return join(predicate(english.verb(verb_.base), tense, agreement), thing, verb_.rest)


@construction(22)
def passive(g: Phrases) -> Pair:
    """被: the passive."""
    zh, result, word, groups = g.pick(RESULTS)
    noun = g.noun(groups)
    thing = g.definite(noun, 0)
    g.combine("verb-object", zh, noun.zh)
    doer = g.subject(pronouns=0.25)
    if zh == "偷":
        doer = Phrase("人", "someone")
    en = predicate(english.verb(word), "passive", thing.agreement)
    time, time_en = g.pick((*PAST[:3], ("", ""), ("", "")))
    return f"{thing.zh}{time}被{doer.zh}{zh}{result}了", join(thing.en, en, f"by {doer.as_object}", time_en)


MANNERS = [
    ("跑", "run", ("快", "fast"), ("慢", "slowly")), ("游", "swim", ("快", "fast"), ("好", "well")),
    ("唱", "sing", ("好", "well"), ("好听", "beautifully")), ("跳", "jump", ("高", "high"), ("远", "far")),
    ("画", "draw", ("好", "well"), ("快", "fast")), ("起", "get up", ("早", "early"), ("晚", "late")),
    ("睡", "sleep", ("好", "well"), ("香", "soundly")), ("学", "study", ("认真", "seriously"), ("好", "well")),
    ("来", "come", ("早", "early"), ("晚", "late")), ("吃", "eat", ("快", "fast"), ("慢", "slowly")),
    ("走", "walk", ("快", "fast"), ("慢", "slowly")), ("工作", "work", ("努力", "hard"), ("认真", "seriously")),
]  # fmt: skip


@construction(25)
def manner(g: Phrases) -> Pair:
    """得: how well something is done."""
    subject = g.subject()
    if g.chance(0.25):
        language, language_en = g.pick(lexicon.LANGUAGES)
        how, how_en = g.pick((("很好", "very well"), ("很流利", "very fluently"), ("不好", "not")))
        negative = how == "不好"
        en = join(
            predicate(verb("speak"), "present", subject.agreement, negative),
            language_en,
            "well" if negative else how_en,
        )
        return f"{subject.zh}{language}说得{how}", f"{subject.en} {en}"
    zh, word, *ways = g.pick(MANNERS)
    way, way_en = g.pick(ways)
    if g.chance(0.35):
        other = g.other(subject)
        more = {"slowly": "more slowly", "well": "better", "beautifully": "more beautifully", "seriously": "more seriously",
                "soundly": "more soundly", "hard": "harder", "far": "farther", "early": "earlier", "late": "later", "fast": "faster", "high": "higher"}[way_en]  # fmt: skip
        en = join(subject.en, predicate(verb(word), "present", subject.agreement), more, "than", other.as_object)
        return f"{subject.zh}比{other.zh}{zh}得{way}", en
    front, adverb, negative = g.pick(
        (("很", "very", False), ("非常", "extremely", False), ("不", "", True), ("太", "too", False))
    )
    en = join(subject.en, predicate(verb(word), "present", subject.agreement, negative), adverb, way_en)
    return f"{subject.zh}{zh}得{front}{way}{'了' if front == '太' else ''}", en
