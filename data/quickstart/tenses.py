"""Aspect and tense: 正在, 了, 没, 过, 会, 要, and the modal verbs."""

from __future__ import annotations

from collections.abc import Sequence

import lexicon
from english import join, predicate, verb
from grammar import Pair, construction, timed, when
from lexicon import EXPERIENCE_VERBS, HABIT_VERBS, NOW_VERBS, PAST_VERBS, PLAN_VERBS, WISH_VERBS
from phrases import NUMBERS, Action, Phrases
from timewords import DURATIONS, FREQUENCIES, FUTURE, HABITUAL, PAST, clock


@construction(60)
def ongoing(g: Phrases) -> Pair:
    """正在: the progressive."""
    subject = g.subject()
    action = g.action(NOW_VERBS, "now", subject.adult)
    place = g.place(action, subject, 0.6)
    adverb = g.pick((("", ""), ("", ""), ("还", "still"), ("也", "also")))
    en = predicate(action.verb, "progressive", subject.agreement, adverb=adverb[1])
    now = f"{'在' if adverb[0] == '还' else '正在'}{place.locative if place else ''}"
    return f"{subject.zh}{adverb[0]}{now}{action.zh}", join(
        subject.en, en, action.object_en, (place and place.at) or ""
    )


@construction(70)
def habitual(g: Phrases) -> Pair:
    """每天, 常常: the simple present, with adverbs of frequency before the English verb."""
    subject = g.subject()
    action = g.action(HABIT_VERBS, "bare", subject.adult)
    place = g.place(action, subject, 0.6)
    where = f"在{place.locative}" if place else ""
    at = place.at if place else ""
    if g.chance(0.5):
        adverb, adverb_en = g.pick(FREQUENCIES)
        en = predicate(action.verb, "present", subject.agreement, adverb=adverb_en)
        return f"{subject.zh}{adverb}{where}{action.zh}", join(subject.en, en, action.object_en, at)
    time, time_en = when(g, HABITUAL, action)
    en = predicate(action.verb, "present", subject.agreement)
    return timed(g, subject.zh, time, where + action.zh), join(subject.en, en, action.object_en, at, time_en)


@construction(20)
def daily_hours(g: Phrases) -> Pair:
    """每天早上七点: the clock, small units last in Chinese and first in English."""
    subject = g.subject(adult=True)
    time, hour_en, part_en = clock(g)
    habit = g.pick(lexicon.HABITS[part_en])
    en = predicate(habit.en, "present", subject.agreement)
    return f"{subject.zh}每天{time}{habit.zh}", join(subject.en, en, hour_en, f"every {part_en}")


@construction(80)
def finished(g: Phrases) -> Pair:
    """了: the simple past."""
    subject = g.subject()
    action = g.action(PAST_VERBS, "counted", subject.adult)
    place = g.place(action, subject, 0.5)
    where = f"在{place.locative}" if place else ""
    body = f"{action.verb_zh}了{action.object_zh}" if action.counted else f"{action.zh}了"
    time, time_en = when(g, PAST, action) if g.chance(0.8) or not action.counted else ("", "")
    en = join(
        subject.en,
        predicate(action.verb, "past", subject.agreement),
        action.object_en,
        place.at if place else "",
        time_en,
    )
    return timed(g, subject.zh, time, where + body), en


@construction(40)
def not_finished(g: Phrases) -> Pair:
    """没, 还没: did not, has not yet."""
    subject = g.subject()
    action = g.action(PAST_VERBS, "bare", subject.adult)
    if g.chance(0.3):
        en = predicate(action.verb, "perfect", subject.agreement, negative=True)
        return f"{subject.zh}还没{action.zh}", join(subject.en, en, action.object_en, "yet")
    time, time_en = when(g, [t for t in PAST if "前" not in t[0][1:]], action)
    en = predicate(action.verb, "past", subject.agreement, negative=True)
    return timed(g, subject.zh, time, f"没{action.zh}"), join(subject.en, en, action.object_en, time_en)


@construction(30)
def already(g: Phrases) -> Pair:
    """已经 ... 了: has already."""
    subject = g.subject()
    action = g.action(PAST_VERBS, "counted", subject.adult)
    body = f"{action.verb_zh}了{action.object_zh}" if action.counted else f"{action.zh}了"
    en = predicate(action.verb, "perfect", subject.agreement, adverb="already")
    return f"{subject.zh}已经{body}", join(subject.en, en, action.object_en)


@construction(50)
def experience(g: Phrases) -> Pair:
    """过, 没 ... 过, 从来没 ... 过: have, have not, have never."""
    subject = g.subject()
    if g.chance(0.5):
        goal = g.pick((g.city, g.country, g.sight, g.sight))()
        been = goal.word in lexicon.TOWNS or g.chance(0.5)
        action = (
            Action("去", goal.zh, verb("be to"), goal.en) if been else Action("参观", goal.zh, verb("visit"), goal.en)
        )
    else:
        action = g.action(EXPERIENCE_VERBS, "bare", subject.adult, activities=0)
    front, adverb, negative, last = g.pick(
        (
            ("", "", False, ""),
            ("", "", False, ""),
            ("以前", "", False, "before"),
            ("没", "", True, ""),
            ("从来没", "never", False, ""),
        )
    )
    en = predicate(action.verb, "perfect", subject.agreement, negative, adverb)
    return f"{subject.zh}{front}{action.verb_zh}过{action.object_zh}", join(subject.en, en, action.object_en, last)


@construction(16)
def times(g: Phrases) -> Pair:
    """去过三次: how often."""
    subject, goal = g.subject(), g.pick((g.city, g.country, g.sight))()
    count, count_en = g.pick([["一", "once"], ["两", "twice"], *([zh, f"{en} times"] for zh, en in NUMBERS[1:5])])
    en = predicate(verb("be to"), "perfect", subject.agreement)
    return f"{subject.zh}去过{count}次{goal.zh}", join(subject.en, en, goal.en, count_en)


@construction(22)
def duration(g: Phrases) -> Pair:
    """跳了两个小时舞: how long, between the verb and its inner object."""
    subject = g.subject()
    length, length_en = g.pick(DURATIONS)
    if g.chance(0.3):
        language, language_en = g.pick(lexicon.LANGUAGES)
        years, years_en = g.pick([["一", "a year"], *([zh, f"{en} years"] for zh, en in NUMBERS[:5])])
        return f"{subject.zh}学了{years}年{language}", f"{subject.en} studied {language_en} for {years_en}"
    action = g.activity(subject.adult)
    time, time_en = when(g, PAST, action)
    en = join(subject.en, predicate(action.verb, "past", subject.agreement), "for", length_en, time_en)
    return timed(g, subject.zh, time, f"{action.verb_zh}了{length}{action.object_zh}"), en


@construction(45)
def future(g: Phrases, fronts: Sequence[str] = ("会", "要", "不会", "打算")) -> Pair:
    """会 "will", 要 "is going to", 打算 "plans to", with a time to come."""
    subject = g.subject()
    front = g.pick(fronts)
    action = g.action(PLAN_VERBS, g.pick(("bare", "pointed", "bare" if front == "不会" else "counted")), subject.adult)
    time, time_en = when(g, FUTURE, action)
    if front == "打算":
        en = f"{predicate(verb('plan'), 'present', subject.agreement)} to {action.base}"
    else:
        en = join(
            predicate(action.verb, "going" if front == "要" else "will", subject.agreement, front == "不会"),
            action.object_en,
        )
    return timed(g, subject.zh, time, front + action.zh), join(subject.en, en, time_en)


@construction(60)
def modal(g: Phrases) -> Pair:
    """想, 应该, 必须, 能, 可以, 需要, and their negations."""
    subject = g.subject()
    front, tense, negative = g.pick(
        (("想", "want", False), ("不想", "want", True), ("应该", "should", False), ("不应该", "should", True),
         ("必须", "must", False), ("能", "can", False), ("不能", "cannot", False), ("可以", "can", False),
         ("不可以", "cannot", False), ("需要", "need", False), ("不需要", "need", True))
    )  # fmt: skip
    form = g.pick(("bare", "pointed", "bare" if front[0] == "不" else "counted"))
    action = g.action(WISH_VERBS, form, subject.adult)
    place = g.place(action, subject, 0.35)
    where, at = (f"在{place.locative}", place.at) if place else ("", "")
    if tense in ("want", "need"):
        en = f"{predicate(verb(tense), 'present', subject.agreement, negative)} to {action.base}"
    else:
        en = join(predicate(action.verb, tense, subject.agreement, negative), action.object_en)
    return f"{subject.zh}{front}{where}{action.zh}", join(subject.en, en, at)


@construction(22)
def skill(g: Phrases) -> Pair:
    """会 without a time to come is "can": 会说汉语, 会游泳."""
    subject = g.subject()
    if g.chance(0.4):
        language, language_en = g.pick(lexicon.LANGUAGES)
        zh, en = f"说{language}", f"speak {language_en}"
    else:
        zh, *words = g.pick(lexicon.SKILLS)
        en = " ".join(words)
    match g.rng.randrange(4):
        case 0:
            return f"{subject.zh}不会{zh}", f"{subject.en} cannot {en}"
        case 1 if subject.agreement != "1":
            return f"{subject.zh}会{zh}吗？", f"can {subject.en} {en}"
        case 2:
            want = predicate(verb("want"), "present", subject.agreement)
            return f"{subject.zh}想学{zh}", f"{subject.en} {want} to learn to {en}"
        case _:
            return f"{subject.zh}会{zh}", f"{subject.en} can {en}"
