"""Likes, and going places: cities, sights, means of transport, purposes."""

from __future__ import annotations

import lexicon
from english import join, predicate, verb
from grammar import Pair, construction, timed
from lexicon import HABIT_VERBS
from phrases import BE, Phrases
from timewords import FUTURE, FUTURE_LONG, HABITUAL, PAST, PAST_LONG


@construction(45)
def liking(g: Phrases) -> Pair:
    """喜欢, 爱, 不喜欢 before things, activities, places and people; 最喜欢 "likes most"."""
    subject = g.subject()
    front, word, negative = g.pick(
        (
            ("喜欢", "like", False),
            ("喜欢", "like", False),
            ("爱", "love", False),
            ("不喜欢", "like", True),
            ("也喜欢", "like", False),
        )
    )
    en = predicate(verb(word), "present", subject.agreement, negative, adverb="also" if front[0] == "也" else "")
    if front[-1] == "爱":
        goal = g.pick((g.city, g.country, g.sight, g.sight, g.kin, g.name))()
        if goal.zh == subject.zh:
            goal = g.sight()
        g.combine("verb-object", "爱", goal.word)
        return f"{subject.zh}爱{goal.zh}", join(subject.en, en, goal.as_object)
    match g.rng.randrange(4):
        case 0:
            action = g.action(HABIT_VERBS, "bare", subject.adult)
            return f"{subject.zh}{front}{action.zh}", join(subject.en, en, action.ing)
        case 1:
            goal = g.pick((g.city, g.country, g.sight))()
            return f"{subject.zh}{front}{goal.zh}", join(subject.en, en, goal.en)
        case 2:
            noun = g.noun(
                (
                    "fruit",
                    "vegetables",
                    "dishes",
                    "sweets",
                    "drinks",
                    "pets",
                    "wild",
                    "farm",
                    "plants",
                    "books",
                    "texts",
                )
            )
            g.combine("verb-object", "喜欢", noun.zh)
            return f"{subject.zh}{front}{noun.zh}", join(subject.en, en, noun.plural)
        case _:
            liked = g.pick(
                (lambda: g.thing_clause()[0], lambda: g.pointed(g.noun(tuple(lexicon.NOUNS))), lambda: g.other(subject))
            )()
            return f"{subject.zh}{front}{liked.zh}", join(subject.en, en, liked.as_object)


NEARBY = [("坐公共汽车", "by bus"), ("坐地铁", "by subway"), ("坐出租车", "by taxi"), ("骑车", "by bicycle"),
          ("开车", "by car"), ("走路", "on foot")]  # fmt: skip
FAR_AWAY = [time for time in PAST_LONG if any(unit in time[0] for unit in ("星期", "周末", "月", "年"))]
FAR = [("坐火车", "by train"), ("坐飞机", "by plane"), ("坐船", "by boat")]


@construction(55)
def going(g: Phrases) -> Pair:
    """坐火车去北京, 跟朋友一起去公园: the means and the company before the verb."""
    subject = g.subject(adult=True)
    if g.chance(0.6):
        goal = g.pick((g.city, g.city, g.country, g.sight))()
        means = g.pick(FAR if goal.word in lexicon.TOWNS else NEARBY[:3])
        goal_zh, goal_en = goal.zh, f"to {goal.en}"
    else:
        place = g.pick(lexicon.GOALS)
        g.combine("person-place", subject.word, place.zh)
        goal_zh, goal_en, means = place.zh, f"to the {place.en}", g.pick(NEARBY)
    how, how_en = means if g.chance(0.5) else ("", "")
    if not how and g.chance(0.5):
        friend = g.other(subject)
        how, how_en = f"跟{friend.zh}一起", f"with {friend.as_object}"
    front, tense, choices = g.pick(
        (("想", "", FUTURE_LONG), ("要", "going", FUTURE_LONG), ("打算", "plan", FUTURE_LONG), ("会", "will", FUTURE_LONG), ("", "past", PAST_LONG), ("没", "past", PAST_LONG),
         ("常常", "often", [("", "")]))
    )  # fmt: skip
    if tense == "past" and goal_zh in lexicon.TOWNS:
        choices = FAR_AWAY
    time, time_en = g.pick(choices)
    body = f"{front}{how}去{'了' if tense == 'past' and not front else ''}{goal_zh}"
    if tense in ("", "plan"):
        en = f"{predicate(verb(tense or 'want'), 'present', subject.agreement)} to go"
    elif tense == "often":
        en = predicate(verb("go"), "present", subject.agreement, adverb="often")
    else:
        en = predicate(verb("go"), tense, subject.agreement, front == "没")
    return timed(g, subject.zh, time, body), join(subject.en, en, goal_en, how_en, time_en)


@construction(25)
def purpose(g: Phrases) -> Pair:
    """去图书馆借书: two verbs in a row, the second is the purpose."""
    subject = g.subject()
    while True:
        action = g.action(("买", "借", "寄", "吃", "喝", "读"), "bare", False, activities=0.4)
        groups = [group for group in action.places if group not in ("room", "kitchen")]
        if groups:
            break
        g.combinations.clear()
    place = g.pick([p for group in groups for p in lexicon.PLACES[group]])
    g.combine("person-place", subject.word, place.zh)
    front, tense, choices = g.pick(
        (("要", "going", FUTURE), ("想", "want", FUTURE), ("", "past", PAST), ("", "present", HABITUAL))
    )
    time, time_en = g.pick(choices)
    goal = f"to the {place.en}"
    if tense == "want":
        en = f"{predicate(verb('want'), 'present', subject.agreement)} to go"
    else:
        en = predicate(verb("go"), tense, subject.agreement)
    end = "了" if tense == "past" else ""
    return timed(g, subject.zh, time, f"{front}去{place.zh}{action.zh}{end}"), join(
        subject.en, en, goal, "to", action.base, time_en
    )


@construction(22)
def sights(g: Phrases) -> Pair:
    """北京天安门 and its like: the city before the landmark, "Tiananmen in Beijing"."""
    subject = g.subject()
    sight = g.sight(0.7)
    match g.rng.randrange(5):
        case 0:
            time, time_en = g.pick(PAST_LONG)
            return timed(g, subject.zh, time, f"参观了{sight.zh}"), join(subject.en, "visited", sight.en, time_en)
        case 1:
            en = predicate(verb("want"), "present", subject.agreement)
            return f"{subject.zh}想参观{sight.zh}", f"{subject.en} {en} to visit {sight.en}"
        case 2:
            adjective = lexicon.ADJECTIVES[g.pick(("有名", "漂亮"))]
            agreement = "3"
            front, adverb = g.pick((("很", "very"), ("非常", "extremely"), ("真", "really")))
            return f"{sight.zh}{front}{adjective.zh}", join(
                sight.en, predicate(BE, "present", agreement), adverb, adjective.en
            )
        case 3:
            time, time_en = g.pick(PAST)
            return timed(g, subject.zh, time, f"在{sight.zh}拍照了"), join(
                subject.en, "took photos at", sight.en, time_en
            )
        case _:
            city, zh, *words = g.pick(lexicon.LANDMARKS)
            return f"{zh}在{city}", f"{' '.join(words)} is in {dict(g.cities())[city]}"


@construction(18)
def living(g: Phrases) -> Pair:
    """住在, 来自, 在 ... 工作."""
    subject = g.subject(adult=True)
    city = g.pick((g.city, g.country))()
    zh, word, preposition = g.pick(
        (
            ("住在{}", "live", "in"),
            ("来自{}", "come", "from"),
            ("在{}工作", "work", "in"),
            ("出生在{}", "be born", "in"),
        )
    )
    en = predicate(verb(word), "past" if word == "be born" else "present", subject.agreement)
    return subject.zh + zh.format(city.zh), join(subject.en, en, preposition, city.en)
