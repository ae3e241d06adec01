"""Sentences of two clauses."""

from __future__ import annotations

import lexicon
from comparing import OPPOSITES, comparing_people, comparing_things
from describing import describing_people, describing_things, identity
from english import join, predicate, verb
from grammar import Construction, Pair, construction, when
from lexicon import NOW_VERBS, PLAN_VERBS
from phrases import BE, Action, Phrase, Phrases
from tenses import future, modal, ongoing, skill
from timewords import FUTURE, HABITUAL
from travel import going, liking

WEATHER = [("下雨", "rain"), ("下雪", "snow")]


# What one does, and does not do, in each state: activities by name, or a verb and its objects.
REACTIONS = {
    "累": ("休息 睡觉 听音乐", "OUT"), "忙": ("工作 开会 写作业", "FUN"), "饿": ("吃 做饭", "OUT"), "渴": ("喝", "OUT"),
    "高兴": ("唱歌 跳舞 买", "睡觉 工作"), "难过": ("睡觉 听音乐 听", "FUN"), "生气": ("散步 写", "FUN"),
    "紧张": ("散步 听音乐 聊天", "睡觉 休息"), "冷": ("穿/外套 穿/毛衣 戴/手套 戴/围巾 喝/茶 喝/汤", "OUT"),
    "下雨": ("看电视 下棋 休息 看 带/雨伞", "OUT"), "下雪": ("拍照 穿/外套 戴/手套 戴/帽子 听音乐 看", "OUT"),
}  # fmt: skip
OUT = "跑步 散步 锻炼 游泳 踢足球 打篮球 打网球 骑自行车 钓鱼 买东西 买菜"
FUN = "玩游戏 跳舞 唱歌 看电视 聊天 下棋 打乒乓球 弹吉他 看 画画 上网"


def _reaction(g: Phrases, cause: str, welcome: bool) -> Action:
    """Something sensible to do, or not to do, in the state or weather `cause`."""
    names = REACTIONS[cause][0 if welcome else 1].replace("OUT", OUT).replace("FUN", FUN)
    name = g.pick(names.split())
    for known in lexicon.ACTIVITIES:
        if known.zh == name:
            return Action(known.verb, known.inner, known.en)
    verb_zh, _, noun_zh = name.partition("/")
    action = g.action((verb_zh,), "bare", activities=0)
    while noun_zh and action.object_zh != noun_zh:
        g.combinations.discard(("verb-object", verb_zh, action.object_zh))
        action = g.action((verb_zh,), "bare", activities=0)
    return action


def _state(g: Phrases, subject: Phrase, choices: str = "") -> tuple[str, str, str]:
    """A passing state: Chinese, English, and the English copula."""
    names = (choices or lexicon.GROUP_ADJECTIVES["state"]).split()
    adjective = lexicon.ADJECTIVES[g.pick(names)]
    g.combine("adjective-noun", adjective.zh, subject.word)
    return adjective.zh, adjective.en, predicate(BE, "present", subject.agreement)


@construction(36)
def because(g: Phrases) -> Pair:
    """因为 ... 所以 ...: Chinese marks both clauses, English one."""
    subject = g.pronoun()
    if g.chance(0.6):
        cause, adjective, is_ = _state(g, subject)
        reason, reason_en = f"{subject.zh}很{cause}", f"{subject.en} {is_} very {adjective}"
    else:
        cause, en = g.pick(WEATHER)
        reason, reason_en = f"今天{cause}", f"it is {verb(en).ing} today"
    welcome = g.chance(0.5)
    result = _reaction(g, cause, welcome)
    choices = (
        (("要", "going", False), ("想", "want", False))
        if welcome
        else (("不想", "want", True), ("不能", "cannot", False), ("没", "past", True))
    )
    front, tense, negative = g.pick(choices)
    if tense == "want":
        en = f"{predicate(verb('want'), 'present', subject.agreement, negative)} to {result.base}"
    else:
        en = join(predicate(result.verb, tense, subject.agreement, negative), result.object_en)
    return f"因为{reason}，所以{subject.zh}{front}{result.zh}", f"because {reason_en}, {subject.en} {en}"


@construction(40)
def conditions(g: Phrases) -> Pair:
    """如果 ... 就 ...: English has no "then", and the present in the if-clause."""
    subject = g.pronoun()
    kind = g.rng.randrange(4)
    welcome = g.chance(0.6)
    if kind == 0:
        cause, en = g.pick(WEATHER)
        time, time_en = g.pick(FUTURE[:5])
        condition = f"{time}{cause}"
        condition_en = join("it", predicate(verb(en), "present", "3"), time_en)
        result = _reaction(g, cause, welcome)
    elif kind == 1:
        cause, adjective, is_ = _state(g, subject)
        condition, condition_en = f"{subject.zh}很{cause}", f"{subject.en} {is_} very {adjective}"
        result = _reaction(g, cause, welcome)
    elif kind == 2:
        city, landmark, *words = g.pick(lexicon.LANDMARKS)
        city_en = dict(g.cities())[city]
        condition, condition_en = (
            f"{subject.zh}去{city}",
            join(subject.en, predicate(verb("go"), "present", subject.agreement), "to", city_en),
        )
        result, welcome = Action("参观", landmark, verb("visit"), " ".join(words)), True
    else:
        zh, en = g.pick((("有时间", "time"), ("有钱", "money")))
        condition, condition_en = (
            f"{subject.zh}{zh}",
            join(subject.en, predicate(verb("have"), "present", subject.agreement), en),
        )
        result, welcome = (
            g.action(PLAN_VERBS[:1] if en == "money" else PLAN_VERBS, "bare", activities=0.0 if en == "money" else 0.4),
            True,
        )
    front, tense, negative = g.pick(
        (("会", "will", False), ("应该", "should", False), ("可以", "can", False))
        if welcome
        else (("不会", "will", True), ("不应该", "should", True))
    )
    en = join(predicate(result.verb, tense, subject.agreement, negative), result.object_en)
    return f"如果{condition}，{subject.zh}就{front}{result.zh}", f"if {condition_en}, {subject.en} {en}"


ANCHORS = ("吃早饭", "吃午饭", "吃晚饭", "睡觉", "工作", "写作业", "做饭", "跑步", "开会")


@construction(30)
def whens(g: Phrases) -> Pair:
    """... 的时候 "when", ... 以前 "before", ... 以后 "after": Chinese puts the conjunction last."""
    subject = g.subject()
    if g.chance(0.4):
        word, word_en = g.pick((("以前", "before"), ("以后", "after")))
        adverb, adverb_en = g.pick((("常常", "often"), ("总是", "always")))
        first = g.pick([a for a in lexicon.ACTIVITIES if a.zh in ANCHORS])
        main = g.action(("喝", "读", "看", "听"), "bare", subject.adult)
        while main.zh in ANCHORS:
            main = g.activity(subject.adult)
        en = join(predicate(main.verb, "present", subject.agreement, adverb=adverb_en), main.object_en)
        doing = join(first.en.ing, first.en.rest)
        return f"{first.zh}{word}，{subject.zh}{adverb}{main.zh}", f"{word_en} {doing}, {subject.en} {en}"
    action = g.activity(subject.adult)
    main = g.action(NOW_VERBS, "now", activities=0.6)
    other = g.other(subject)
    now = join(predicate(action.verb, "past progressive", subject.agreement), action.object_en)
    other_now = join(predicate(main.verb, "past progressive", other.agreement), main.object_en)
    if g.chance(0.5):
        return (
            f"{subject.zh}{action.zh}的时候，{other.zh}正在{main.zh}",
            f"when {subject.en} {now}, {other.en} {other_now}",
        )
    place = g.pick(lexicon.GOALS)
    g.combine("person-place", subject.word, place.zh)
    arrived = f"when {subject.en} got to the {place.en}"
    return f"{subject.zh}到{place.zh}的时候，{other.zh}正在{main.zh}", f"{arrived}, {other.en} {other_now}"


@construction(24)
def although(g: Phrases) -> Pair:
    """虽然 ... 但是 ...: Chinese marks both clauses, English one."""
    if g.chance(0.5):
        noun = g.noun(lexicon.DESCRIBED)
        subject = g.definite(noun, 0)
        first, second = g.adjective(noun), g.adjective(noun)
        while second is first or frozenset((first.zh, second.zh)) in OPPOSITES:
            g.combinations.clear()
            g.combine("adjective-noun", first.zh, noun.zh)
            second = g.adjective(noun)
        is_ = predicate(BE, "present", subject.agreement)
        it = "they are" if subject.agreement == "p" else "it is"
        return (
            f"虽然{subject.zh}很{first.zh}，但是不{second.zh}",
            f"although {subject.en} {is_} very {first.en}, {it} not {second.en}",
        )
    subject = g.pronoun()
    zh, adjective, is_ = _state(g, subject, "累 饿 渴 难过 生气 紧张 冷")
    action = g.action(NOW_VERBS, "now", True)
    still = join(predicate(action.verb, "progressive", subject.agreement, adverb="still"), action.object_en)
    return (
        f"虽然{subject.zh}很{zh}，但是{subject.zh}还在{action.zh}",
        f"although {subject.en} {is_} very {adjective}, {subject.en} {still}",
    )


CHORES = [("走路", "walk"), ("做饭", "cook"), ("洗碗", "wash dishes"), ("写作业", "do homework"), ("打扫房间", "clean the room"), ("看报纸", "read newspapers"), ("工作", "work"), ("画画", "draw pictures")]  # fmt: skip
PASTIMES = [
    ("听音乐", "listen to music"),
    ("唱歌", "sing"),
    ("喝茶", "drink tea"),
    ("喝咖啡", "drink coffee"),
    ("聊天", "chat"),
]


@construction(20)
def meanwhile(g: Phrases) -> Pair:
    """一边 ... 一边 ...: while; 和 ... 一起: with."""
    subject = g.subject()
    if g.chance(0.5):
        first, second = g.pick(CHORES), g.pick(PASTIMES)
        adverb, adverb_en = g.pick((("常常", "often"), ("总是", "always"), ("有时候", "sometimes")))
        doing = verb(second[1])
        en = predicate(verb(first[1]), "present", subject.agreement, adverb=adverb_en)
        return (
            f"{subject.zh}{adverb}一边{first[0]}一边{second[0]}",
            f"{subject.en} {en} while {join(doing.ing, doing.rest)}",
        )
    other = g.other(subject)
    action = g.activity(False)
    place = g.place(action, subject, 0.5)
    at = place.at if place else ""
    where = f"在{place.locative}" if place else ""
    front, tense, times = g.pick((("", "present", HABITUAL), ("想", "want", [("", "")]), ("要", "going", FUTURE)))
    time, time_en = when(g, times, action)
    en = (
        f"{predicate(verb('want'), 'present', subject.agreement)} to {action.base}"
        if tense == "want"
        else predicate(action.verb, tense, subject.agreement)
    )
    return f"{subject.zh}{time}{front}和{other.zh}一起{where}{action.zh}", join(
        subject.en, en, "with", other.as_object, at, time_en
    )


OPINIONS = (describing_people, describing_things, comparing_people, comparing_things)
REPORTABLE = (*OPINIONS, ongoing, future, liking, identity, skill, going, modal)


def hoped(g: Phrases) -> Pair:
    return future(g, ("会", "不会"))


@construction(50)
def reporting(g: Phrases) -> Pair:
    """觉得, 知道, 说, 希望, 相信 before a whole sentence: "that"."""
    speaker = g.subject(pronouns=0.6)
    choices: tuple[Construction, ...]
    zh, en, choices = g.pick(
        (("觉得", "think", OPINIONS), ("知道", "know", REPORTABLE), ("不知道", "know", REPORTABLE), ("说", "say", REPORTABLE), ("希望", "hope", (hoped,)),
         ("相信", "believe", (*OPINIONS, hoped)))
    )  # fmt: skip
    inner_zh, inner_en = g.pick(choices)(g)
    while "？" in inner_zh:
        g.combinations.clear()
        inner_zh, inner_en = g.pick(choices)(g)
    return f"{speaker.zh}{zh}{inner_zh}", join(
        speaker.en, predicate(verb(en), "present", speaker.agreement, zh == "不知道"), "that", inner_en
    )
