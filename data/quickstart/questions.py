"""Questions, requests, and sentences of two clauses."""

from __future__ import annotations

import english
import lexicon
from english import join, predicate, question, verb
from grammar import Pair, construction, when
from lexicon import EXPERIENCE_VERBS, HABIT_VERBS, NOW_VERBS, PAST_VERBS, PLAN_VERBS
from phrases import BE, Phrases
from possession import LYING
from timewords import FUTURE, HABITUAL, PAST

OWNABLE = ("clothes", "worn", "devices", "vehicles", "carried", "books", "reference", "furniture", "instruments")


@construction(70)
def yes_no(g: Phrases) -> Pair:
    """吗: in each tense."""
    subject = g.subject(asked=True)
    match g.rng.randrange(6):
        case 0:
            action = g.action(HABIT_VERBS, "bare", subject.adult)
            time, time_en = when(g, HABITUAL, action)
            en = question(subject.en, action.verb, "present", subject.agreement)
            return f"{subject.zh}{time}{action.zh}吗？", join(en, action.object_en, time_en)
        case 1:
            action = g.action(PAST_VERBS, "bare", subject.adult)
            time, time_en = when(g, PAST, action)
            en = question(subject.en, action.verb, "past", subject.agreement)
            return f"{subject.zh}{time}{action.zh}了吗？", join(en, action.object_en, time_en)
        case 2:
            action = g.action(NOW_VERBS, "now", subject.adult)
            en = question(subject.en, action.verb, "progressive", subject.agreement)
            return f"{subject.zh}正在{action.zh}吗？", join(en, action.object_en)
        case 3:
            if g.chance(0.6):
                goal = g.pick((g.city, g.country, g.sight))()
                zh, en, rest = f"去过{goal.zh}", verb("be to"), goal.en
            else:
                action = g.action(EXPERIENCE_VERBS, "bare", activities=0)
                zh, en, rest = f"{action.verb_zh}过{action.object_zh}", action.verb, action.object_en
            return f"{subject.zh}{zh}吗？", join(question(subject.en, en, "perfect", subject.agreement, "ever"), rest)
        case 4:
            action = g.action(PLAN_VERBS, "bare", subject.adult)
            time, time_en = when(g, FUTURE, action)
            front, tense = g.pick((("要", "going"), ("会", "will")))
            en = question(subject.en, action.verb, tense, subject.agreement)
            return f"{subject.zh}{time}{front}{action.zh}吗？", join(en, action.object_en, time_en)
        case _:
            action = g.action(PLAN_VERBS, "bare", subject.adult)
            front, word = g.pick((("想", "want"), ("喜欢", "like")))
            en = question(subject.en, verb(word), "present", subject.agreement)
            return f"{subject.zh}{front}{action.zh}吗？", join(
                en, f"to {action.base}" if word == "want" else action.ing
            )


@construction(24)
def quality_question(g: Phrases) -> Pair:
    """这本书贵吗？"""
    if g.chance(0.5):
        noun = g.noun(tuple(lexicon.NOUNS))
        adjective = g.adjective(noun)
        thing = g.definite(noun, 0)
    else:
        thing = g.subject(asked=True)
        adjective = lexicon.ADJECTIVES[g.pick(lexicon.GROUP_ADJECTIVES[g.pick(("person", "state"))].split())]
        g.combine("adjective-noun", adjective.zh, thing.word)
    return f"{thing.zh}{adjective.zh}吗？", join(predicate(BE, "present", thing.agreement), thing.en, adjective.en)


@construction(16)
def choice(g: Phrases) -> Pair:
    """A 还是 B: or."""
    subject = g.subject(asked=True)
    word_zh, word = g.pick(
        (
            ("喜欢", "like"),
            ("想喝", "want to drink"),
            ("想吃", "want to eat"),
            ("想买", "want to buy"),
            ("想去", "want to go to"),
        )
    )
    if word_zh == "想去":
        first, second = g.city(), g.city()
        while first == second:
            second = g.city()
        pair = [(first.zh, first.en), (second.zh, second.en)]
    else:
        groups = {
            "想喝": ("drinks",),
            "想吃": ("fruit", "dishes", "sweets", "candy"),
            "想买": ("clothes", "worn", "fruit", "vegetables"),
        }.get(word_zh, ("drinks", "fruit", "pets", "wild", "dishes"))
        group = g.pick(groups)
        nouns = g.rng.sample(lexicon.NOUNS[group], 2)
        for noun in nouns:
            g.combine("verb-object", word_zh[-1] if word_zh != "喜欢" else word_zh, noun.zh)
        pair = [(noun.zh, noun.plural) for noun in nouns]
    en = question(subject.en, verb(word), "present", subject.agreement)
    return f"{subject.zh}{word_zh}{pair[0][0]}还是{pair[1][0]}？", f"{en} {pair[0][1]} or {pair[1][1]}"


@construction(60)
def what_and_who(g: Phrases) -> Pair:
    """什么, 谁, 谁的, 哪: stay in place in Chinese, move to the front in English."""
    subject = g.subject(asked=True)
    match g.rng.randrange(7):
        case 0:
            zh, en = g.pick(
                (
                    ("买", "buy"),
                    ("吃", "eat"),
                    ("喝", "drink"),
                    ("写", "write"),
                    ("画", "draw"),
                    ("做", "do"),
                    ("卖", "sell"),
                    ("读", "read"),
                    ("找", "look for"),
                )
            )
            pattern, tense, times = g.pick(
                (
                    ("正在{}什么", "progressive", [("", "")]),
                    ("想{}什么", "want", [("", "")]),
                    ("{}了什么", "past", PAST),
                    ("每天{}什么", "present", [("", "every day")]),
                )
            )
            time, time_en = g.pick(times)
            asked = (
                f"{question(subject.en, verb('want'), 'present', subject.agreement)} to {en}"
                if tense == "want"
                else question(subject.en, verb(en), tense, subject.agreement)
            )
            return f"{subject.zh}{time}{pattern.format(zh)}？", join("what", asked, time_en)
        case 1:
            action = g.action(NOW_VERBS, "now", True)
            place = g.place(action, subject, 0.0)
            where = g.pick([p for group in action.places for p in lexicon.PLACES[group]]) if action.places else place
            return f"谁正在{where.locative if where else ''}{action.zh}？", join(
                "who", predicate(action.verb, "progressive", "3"), action.object_en, where.at if where else ""
            )
        case 2:
            zh, en = g.pick(
                (("认识", "know"), ("等", "wait for"), ("帮助", "help"), ("找", "look for"), ("照顾", "take care of"))
            )
            if zh == "认识":
                return f"谁认识{subject.zh}？", f"who knows {subject.as_object}"
            return f"{subject.zh}正在{zh}谁？", join(
                "who", question(subject.en, verb(en), "progressive", subject.agreement)
            )
        case 3:
            thing = g.counted(g.noun(OWNABLE), g.pick(("this", "that")))
            return f"{thing.zh}是谁的？", f"whose is {thing.en}"
        case 4:
            noun = g.noun((*OWNABLE, "pictures", "fruit"))
            unit = noun.unit
            which = f"which {unit} of {noun.en}" if unit else f"which {noun.en}"
            front, word = g.pick((("喜欢", "like"), ("想买", "want to buy")))
            g.combine("verb-object", "买" if front == "想买" else front, noun.zh)
            return f"{subject.zh}{front}哪{noun.measure}{noun.zh}？", join(
                which, question(subject.en, verb(word), "present", subject.agreement)
            )
        case 5:
            zh, en = g.pick(
                (
                    ("医生", "doctor"),
                    ("老师", "teacher"),
                    ("经理", "manager"),
                    ("司机", "driver"),
                    ("厨师", "chef"),
                    ("护士", "nurse"),
                )
            )
            return (
                (f"谁是{zh}？", f"who is the {en}")
                if g.chance(0.2)
                else (f"{subject.zh}是谁？", f"who {predicate(BE, 'present', subject.agreement)} {subject.en}")
            )
        case _:
            thing = g.thing_clause()[0]
            return f"{thing.zh}在哪里？", f"where {predicate(BE, 'present', thing.agreement)} {thing.en}"


@construction(60)
def where_when_why_how(g: Phrases) -> Pair:
    """哪里, 什么时候, 为什么, 怎么."""
    subject = g.subject(asked=True)
    match g.rng.randrange(6):
        case 0:
            thing = g.definite(g.noun((*LYING, "vehicles")), 0) if g.chance(0.5) else subject
            return f"{thing.zh}在哪里？", f"where {predicate(BE, 'present', thing.agreement)} {thing.en}"
        case 1:
            action = g.action(NOW_VERBS, "bare", subject.adult)
            pattern, tense, times = g.pick(
                (
                    ("每天在哪里{}", "present", [("", "every day")]),
                    ("想在哪里{}", "want", [("", "")]),
                    ("在哪里{}的", "past", PAST),
                )
            )
            time, time_en = when(g, times, action)
            asked = (
                f"{question(subject.en, verb('want'), 'present', subject.agreement)} to {action.base}"
                if tense == "want"
                else join(question(subject.en, action.verb, tense, subject.agreement), action.object_en)
            )
            return f"{subject.zh}{time}{pattern.format(action.zh)}？", join("where", asked, time_en)
        case 2:
            action = g.action(PLAN_VERBS, g.pick(("bare", "pointed")), subject.adult)
            front, tense = g.pick((("要", "going"), ("会", "will")))
            return f"{subject.zh}什么时候{front}{action.zh}？", join(
                "when", question(subject.en, action.verb, tense, subject.agreement), action.object_en
            )
        case 3:
            front, tense, negative, verbs = g.pick(
                (
                    ("不", "present", True, HABIT_VERBS),
                    ("没", "past", True, PAST_VERBS),
                    ("要", "going", False, PLAN_VERBS),
                    ("总是", "present", False, HABIT_VERBS),
                )
            )
            action = g.action(verbs, "bare", subject.adult)
            adverb = "not" if negative else "always" if front == "总是" else ""
            return f"{subject.zh}为什么{front}{action.zh}？", join(
                "why", question(subject.en, action.verb, tense, subject.agreement, adverb), action.object_en
            )
        case 4:
            goal = g.pick((g.city, g.sight))()
            front, tense = g.pick((("要", "going"), ("会", "will"), ("想", "want")))
            asked = (
                f"{question(subject.en, verb('want'), 'present', subject.agreement)} to go to"
                if tense == "want"
                else question(subject.en, verb("go to"), tense, subject.agreement)
            )
            word, word_en = g.pick((("怎么", "how"), ("为什么", "why"), ("什么时候", "when"), ("怎么", "how")))
            return (
                f"{subject.zh}{word}{front}去{goal.zh}？"
                if word != "怎么"
                else f"{subject.zh}{front}怎么去{goal.zh}？",
                f"{word_en} {asked} {goal.en}",
            )
        case _:
            state = lexicon.ADJECTIVES[g.pick(lexicon.GROUP_ADJECTIVES["state"].split())]
            g.combine("adjective-noun", state.zh, subject.word)
            return (
                f"{subject.zh}为什么这么{state.zh}？",
                f"why {predicate(BE, 'present', subject.agreement)} {subject.en} so {state.en}",
            )


@construction(30)
def how_many(g: Phrases) -> Pair:
    """几 "how many", 多少钱 "how much is"."""
    noun = g.noun((*OWNABLE, "fruit", "pets"))
    unit = noun.unit
    if g.chance(0.35):
        thing = g.definite(g.noun((*OWNABLE, "fruit", "drinks", "dishes", "sweets", "candy")), 0.3)
        return f"{thing.zh}多少钱？", f"how much {predicate(BE, 'present', thing.agreement)} {thing.en}"
    many = f"how many {f'{english.plural(unit)} of {noun.en}' if unit else noun.plural}"
    subject = g.subject(asked=True)
    zh, word, tense = g.pick(
        (
            ("有", "have", "present"),
            ("想买", "want to buy", "present"),
            ("买了", "buy", "past"),
            ("需要", "need", "present"),
        )
    )
    g.combine("verb-object", {"想买": "买", "买了": "买"}.get(zh, zh), noun.zh)
    time, time_en = g.pick(PAST) if tense == "past" else ("", "")
    return f"{subject.zh}{time}{zh}几{noun.measure}{noun.zh}？", join(
        many, question(subject.en, verb(word), tense, subject.agreement), time_en
    )


REQUESTS = [
    ("打开", "open", ("openings",)), ("关上", "close", ("openings",)), ("给我", "give me", ("books", "papers", "dishware", "pens", "drinks", "candy")),
    ("修", "repair", ("vehicles", "devices", "furniture")), ("洗", "wash", ("clothes", "dishware", "fruit")), ("看", "look at", ("pictures",)), ("听", "listen to", ("music",)),
]  # fmt: skip


@construction(30)
def requests(g: Phrases) -> Pair:
    """请, 不要, 吧: the imperative."""
    match g.rng.randrange(4):
        case 0:
            zh, en, groups = g.pick(REQUESTS)
            noun = g.noun(groups)
            thing = g.counted(noun, "one") if zh == "给我" else g.counted(noun, g.pick(("this", "that", "these")))
            g.combine("verb-object", zh.removesuffix("我"), noun.zh)
            return f"请{zh}{thing.zh}", f"please {en} {thing.en}"
        case 1:
            action = g.activity(False)
            place = g.pick(lexicon.GOALS + lexicon.PLACES["station"])
            return f"请不要在{place.locative}{action.zh}", join("please do not", action.base, place.at)
        case 2:
            zh, en, groups = g.pick(REQUESTS[:2])
            noun = g.noun(groups)
            return f"请把{noun.zh}{zh}", f"please {en} the {noun.en}"
        case _:
            if g.chance(0.5):
                place = g.pick(lexicon.GOALS)
                return f"我们去{place.zh}吧", f"let's go to the {place.en}"
            action = g.action(("买", "吃", "喝", "做", "看", "听"), "bare", False, activities=0.7)
            time, time_en = when(g, FUTURE, action)
            return f"我们{time}{action.zh}吧", f"let's {action.base} {time_en}"
