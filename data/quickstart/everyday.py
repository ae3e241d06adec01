"""Everyday matters: weather, age and price, lessons, helping people, animals."""

from __future__ import annotations

import lexicon
from english import join, predicate, question, verb
from grammar import Pair, construction, timed, when
from joined import WEATHER
from lexicon import PLAN_VERBS
from phrases import BE, Phrases
from timewords import FUTURE, HABITUAL, PAST, SEASONS

TEMPERATURES = ("热", "冷", "暖和", "凉快")


@construction(24)
def weather(g: Phrases) -> Pair:
    """No subject in Chinese, "it" in English."""
    city, city_en = g.pick(g.cities())
    temperature = lexicon.ADJECTIVES[g.pick(TEMPERATURES)]
    word, en = g.pick(WEATHER if city not in ("广州", "香港") else WEATHER[:1])
    match g.rng.randrange(6):
        case 0:
            season, season_en = g.pick(SEASONS)
            front, adverb = g.pick((("很", "very"), ("非常", "extremely"), ("不", "not"), ("不太", "not very")))
            return (
                f"{city}的{season}{front}{temperature.zh}",
                f"the {season_en} in {city_en} is {adverb} {temperature.en}",
            )
        case 1:
            time, time_en, past = g.pick(
                (("今天", "today", False), ("昨天", "yesterday", True), ("前天", "the day before yesterday", True))
            )
            front, adverb = g.pick((("很", "very"), ("非常", "extremely"), ("有点儿", "a little")))
            return (
                f"{city}{time}{front}{temperature.zh}",
                f"it {'was' if past else 'is'} {adverb} {temperature.en} in {city_en} {time_en}",
            )
        case 2:
            time, time_en = g.pick(PAST)
            return f"{city}{time}{word}了", f"it {verb(en).past} in {city_en} {time_en}"
        case 3:
            time, time_en = g.pick(FUTURE)
            front, negative = g.pick((("会", False), ("不会", True)))
            return (
                f"{city}{time}{front}{word}",
                f"it {predicate(verb(en), 'will', '3', negative)} in {city_en} {time_en}",
            )
        case 4:
            season, season_en = g.pick(SEASONS)
            adverb, adverb_en = g.pick((("常常", "often"), ("很少", "rarely")))
            return f"{city}{season}{adverb}{word}", f"it {adverb_en} {verb(en).third} in {city_en} in {season_en}"
        case _:
            return f"{city}正在{word}吗？", f"is it {verb(en).ing} in {city_en}"


TENS = [
    ("二十", "twenty"),
    ("三十", "thirty"),
    ("四十", "forty"),
    ("五十", "fifty"),
    ("六十", "sixty"),
    ("八十", "eighty"),
]
AGES = {
    "爷爷": TENS[4:],
    "奶奶": TENS[4:],
    "儿子": TENS[:1],
    "女儿": TENS[:1],
    "弟弟": TENS[:1],
    "妹妹": TENS[:1],
    "哥哥": TENS[:2],
    "姐姐": TENS[:2],
}


@construction(24)
def numbers(g: Phrases) -> Pair:
    """Age and price."""
    if g.chance(0.5):
        subject = g.subject()
        if g.chance(0.2) and subject.agreement != "1":
            return (
                f"{subject.zh}今年多大？",
                f"how old {predicate(BE, 'present', subject.agreement)} {subject.en} this year",
            )
        is_ = predicate(BE, "present", subject.agreement)
        number, number_en = g.pick(
            AGES.get(subject.word, TENS[:5] if subject.adult else [("八", "eight"), ("九", "nine"), ("十", "ten")])
        )
        return f"{subject.zh}今年{number}岁", f"{subject.en} {is_} {number_en} years old this year"
    number, number_en = g.pick(TENS)
    noun = g.noun(("books", "reference", "papers", "clothes", "worn", "pens", "dishware", "cutlery"))
    if g.chance(0.5):
        thing = g.counted(noun, g.pick(("this", "that")))
        return f"{thing.zh}{number}块钱", f"{thing.en} costs {number_en} yuan"
    subject = g.subject()
    g.combine("verb-object", "买", noun.zh)
    thing = g.counted(noun, g.pick(("one", "number")))
    time, time_en = g.pick(PAST)
    en = join(subject.en, "spent", number_en, "yuan on", thing.en, time_en)
    return timed(g, subject.zh, time, f"花{number}块钱买了{thing.zh}"), en


@construction(24)
def lessons(g: Phrases) -> Pair:
    """教, 学: two objects, and "at school"."""
    language, *words = g.pick(lexicon.SUBJECTS)
    en = " ".join(words)
    subject = g.subject(adult=True)
    if g.chance(0.5):
        pupil = g.other(subject)
        front, tense = g.pick((("", "present"), ("正在", "progressive"), ("会", "will"), ("想", "want")))
        time, time_en = g.pick(FUTURE) if tense == "will" else g.pick(HABITUAL) if tense == "present" else ("", "")
        if tense == "want":
            teach = f"{predicate(verb('want'), 'present', subject.agreement)} to teach"
        else:
            teach = predicate(verb("teach"), tense, subject.agreement)
        return timed(g, subject.zh, time, f"{front}教{pupil.zh}{language}"), join(
            subject.en, teach, pupil.as_object, en, time_en
        )
    adverb, adverb_en = g.pick((("", ""), ("也", "also"), ("还", "still")))
    place = g.pick(lexicon.PLACES["study"] + lexicon.PLACES["room"])
    g.combine("person-place", subject.word, place.zh)
    study = predicate(verb("study"), "progressive", subject.agreement, adverb=adverb_en)
    return f"{subject.zh}{adverb}{'' if adverb == '还' else '正'}在{place.locative}学{language}", join(
        subject.en, study, en, place.at
    )


PERSON_VERBS = [
    ("帮助", "help"),
    ("等", "wait for"),
    ("照顾", "take care of"),
    ("感谢", "thank"),
    ("拜访", "visit"),
    ("相信", "believe"),
]


@construction(45)
def helping(g: Phrases) -> Pair:
    """Verbs whose object is a person, relative clauses included: me, him, the boy who ..."""
    subject = g.subject()
    roll = g.rng.randrange(7)
    other = g.person_clause(ongoing=roll not in (2, 3, 4)) if g.chance(0.3) else g.other(subject)
    zh, word = g.pick(PERSON_VERBS)
    if roll == 0:
        negative = g.chance(0.4)
        en = predicate(verb("know"), "present", subject.agreement, negative)
        return f"{subject.zh}{'不' if negative else ''}认识{other.zh}", join(subject.en, en, other.as_object)
    if roll == 1:
        return f"{subject.zh}认识{other.zh}吗？", join(
            question(subject.en, verb("know"), "present", subject.agreement), other.as_object
        )
    if roll in (2, 3):
        zh, word = g.pick((("遇到", "meet"), ("看见", "see"), ("帮助", "help")))
        time, time_en = g.pick(PAST)
        en = predicate(verb(word), "past", subject.agreement)
        return timed(g, subject.zh, time, f"{zh}了{other.zh}"), join(subject.en, en, other.as_object, time_en)
    if roll == 4:
        zh, word = g.pick(PERSON_VERBS[:3])
        place = g.pick(lexicon.GOALS + lexicon.PLACES["station"])
        g.combine("person-place", subject.word, place.zh)
        en = predicate(verb(word), "progressive", subject.agreement)
        return f"{subject.zh}正在{place.locative}{zh}{other.zh}", join(subject.en, en, other.as_object, place.at)
    front, tense = g.pick((("应该", "should"), ("想", "want"), ("必须", "must"), ("不想", "want")))
    if tense == "want":
        en = f"{predicate(verb('want'), 'present', subject.agreement, front == '不想')} to {word}"
    else:
        en = predicate(verb(word), tense, subject.agreement)
    return f"{subject.zh}{front}{zh}{other.zh}", join(subject.en, en, other.as_object)


ORDERS = [
    "打扫房间",
    "洗碗",
    "做饭",
    "写作业",
    "买菜",
    "休息",
    "锻炼",
    "学习",
    "唱歌",
    "跳舞",
    "弹钢琴",
    "睡觉",
    "跑步",
]


@construction(30)
def asking_others(g: Phrases) -> Pair:
    """让 "ask ... to", 帮 "help ... to": the object of the first verb is the subject of the second."""
    subject = g.subject(adult=True)
    other = g.other(subject)
    zh, word = g.pick((("让", "ask"), ("请", "invite"), ("帮", "help")))
    if zh == "帮":
        action = g.action(("买", "洗", "修", "做", "卖", "寄"), g.pick(("bare", "counted", "pointed")), activities=0)
    else:
        action = g.action(PLAN_VERBS, g.pick(("bare", "counted", "pointed")), activities=0.5)
        while not action.object_en and action.zh not in ORDERS:
            action = g.activity(False)
    if zh == "请":
        goal = g.pick(
            (
                ("吃晚饭", "to have dinner"),
                ("吃午饭", "to have lunch"),
                ("喝咖啡", "to have coffee"),
                ("看电影", "to see a movie"),
            )
        )
        time, time_en = g.pick(FUTURE[:8])
        return timed(g, subject.zh, time, f"要请{other.zh}{goal[0]}"), join(
            subject.en, predicate(verb("invite"), "going", subject.agreement), other.as_object, goal[1], time_en
        )
    tense, times = (
        g.pick((("past", PAST), ("past", PAST), ("present", HABITUAL))) if action.object_en == "" else ("past", PAST)
    )
    time, time_en = when(g, times, action)
    en = predicate(verb(word), tense, subject.agreement)
    return timed(g, subject.zh, time, f"{zh}{other.zh}{action.zh}"), join(
        subject.en, en, other.as_object, "to", action.base, time_en
    )


@construction(24)
def animals(g: Phrases) -> Pair:
    """Animals as subjects: 猫正在沙发上睡觉."""
    noun = g.noun(("pets", "farm", "wild"))
    subject = (
        g.definite(noun, 0.2) if noun.group == "pets" else g.counted(noun, g.pick(("this", "that", "these", "those")))
    )
    spots = {
        "pets": [
            ("沙发上", "on the sofa"),
            ("床上", "on the bed"),
            ("厨房里", "in the kitchen"),
            ("花园里", "in the garden"),
        ],
        "farm": [("院子里", "in the yard"), ("农场里", "on the farm")],
        "wild": [("动物园里", "in the zoo"), ("森林里", "in the forest")],
    }[noun.group] + [("树下", "under the tree"), ("河边", "by the river")]
    spot, spot_en = g.pick(spots)
    zh, word = g.pick((("睡觉", "sleep"), ("喝水", "drink water"), ("吃东西", "eat"), ("休息", "rest"), ("跑", "run")))
    if g.chance(0.3):
        return f"{subject.zh}喜欢在{spot}{zh}", join(
            subject.en, predicate(verb("like"), "present", subject.agreement), _ing(word), spot_en
        )
    adverb, adverb_en = g.pick((("", ""), ("", ""), ("还", "still")))
    return f"{subject.zh}{adverb}{'' if adverb else '正'}在{spot}{zh}", join(
        subject.en, predicate(verb(word), "progressive", subject.agreement, adverb=adverb_en), spot_en
    )


def _ing(word: str) -> str:
    return join(verb(word).ing, verb(word).rest)
