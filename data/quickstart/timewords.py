"""Words for time: the adverbs of each tense, the clock, and how long something lasts."""

from __future__ import annotations

from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Picker(Protocol):
    def pick(self, items: list[Item]) -> Item: ...


def _table(text: str) -> list[tuple[str, str]]:
    rows = [entry.split(maxsplit=1) for entry in text.replace("\n", " ").split(";") if entry.strip()]
    return [(zh, " ".join(en.split())) for zh, en in rows]


PAST = _table(
    """昨天 yesterday; 前天 the day before yesterday; 昨天晚上 last night; 昨天下午 yesterday afternoon;
       今天早上 this morning; 两天前 two days ago; 三天前 three days ago; 上个星期 last week; 上个周末 last weekend"""
)
PAST_LONG = PAST + _table("上个月 last month; 去年 last year; 两个星期前 two weeks ago; 三年前 three years ago") * 2
FUTURE = _table(
    """明天 tomorrow; 后天 the day after tomorrow; 明天早上 tomorrow morning; 明天下午 tomorrow afternoon;
       今天晚上 tonight; 这个周末 this weekend; 下个星期 next week; 星期一 on Monday; 星期三 on Wednesday;
       星期五 on Friday; 星期六 on Saturday"""
)
FUTURE_LONG = FUTURE + _table("下个月 next month; 明年 next year") * 2
HABITUAL = _table(
    """每天 every day; 每天早上 every morning; 每天下午 every afternoon; 每天晚上 every evening;
       每个周末 every weekend; 每个星期天 every Sunday; 每个星期二 every Tuesday; 每个星期四 every Thursday"""
)
FREQUENCIES = _table("常常 often; 有时候 sometimes; 总是 always; 很少 rarely; 从来不 never")
SEASONS = _table("春天 spring; 夏天 summer; 秋天 autumn; 冬天 winter")
DURATIONS = _table(
    """一个小时 an hour; 两个小时 two hours; 三个小时 three hours; 五个小时 five hours; 十分钟 ten minutes;
       二十分钟 twenty minutes; 三十分钟 thirty minutes"""
)

HOURS = {
    ("早上", "morning"): "六 six; 七 seven; 八 eight",
    ("下午", "afternoon"): "两 two; 三 three; 四 four; 五 five",
    ("晚上", "evening"): "七 seven; 八 eight; 九 nine; 十 ten",
}
CLOCK = [(f"{part}{zh}点", f"at {en} o'clock", part_en) for (part, part_en), t in HOURS.items() for zh, en in _table(t)]


def clock(picker: Picker) -> tuple[str, str, str]:
    """A time of day: 早上七点, "at seven o'clock", "morning"."""
    return picker.pick(CLOCK)
