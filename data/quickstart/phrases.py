"""Noun phrases and verb phrases, in Chinese and English at once.

What Chinese leaves open is settled by a rule that can be read off the Chinese text, so that every Chinese sentence has
exactly one English one: a bare subject is "the", a bare object is a plural, a bare object behind 正在 is "a".
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import english
import lexicon
from english import Verb, article, join
from lexicon import ADJECTIVES, COLORS, GROUP_ADJECTIVES, Adjective, Noun, Place

Item = TypeVar("Item")
Combination = tuple[str, str, str]  # kind, first word, second word

NUMBER_WORDS = "两 two,三 three,四 four,五 five,六 six,七 seven,八 eight,九 nine,十 ten"
NUMBERS = [entry.split() for entry in NUMBER_WORDS.split(",")]
FEW = NUMBERS[:3] * 4 + NUMBERS
BE = english.verb("be")


@dataclass(frozen=True)
class Phrase:
    """A noun phrase: both sides, its English agreement ("1", "2", "3", "p"), and the word it is about."""

    zh: str
    en: str
    agreement: str = "3"
    object_en: str = ""  # "me" for "I"; empty where it is the same as `en`
    word: str = ""
    adult: bool = True

    @property
    def as_object(self) -> str:
        return self.object_en or self.en


@dataclass(frozen=True)
class Action:
    """A verb phrase before time and place: Chinese verb and object apart, because 了 and 过 stand between them."""

    verb_zh: str
    object_zh: str
    verb: Verb
    object_en: str = ""
    counted: bool = False  # an object with a measure word takes 了 behind the verb, any other at the end
    places: tuple[str, ...] = ()

    @property
    def zh(self) -> str:
        return self.verb_zh + self.object_zh

    @property
    def base(self) -> str:
        return join(self.verb.base, self.verb.rest, self.object_en)

    @property
    def ing(self) -> str:
        return join(self.verb.ing, self.verb.rest, self.object_en)


class Phrases:
    """Draws words and builds phrases; collects the word combinations of the sentence being built in `combinations`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.combinations: set[Combination] = set()

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.rng.randrange(len(items))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def combine(self, kind: str, first: str, second: str) -> None:
        """Notes that this sentence combines two words."""
        if first and second:
            self.combinations.add((kind, first, second))

    # People

    def pronoun(self) -> Phrase:
        zh, en, object_en, _, agreement = self.pick(lexicon.PRONOUNS)
        return Phrase(zh, en, agreement, object_en)

    def name(self) -> Phrase:
        zh, *words = self.pick(lexicon.NAMES)
        return Phrase(zh, " ".join(words), word=zh)

    def kin(self) -> Phrase:
        zh, *words = self.pick(lexicon.KIN)
        owner, _, _, his, _ = self.pick(lexicon.PRONOUNS[:4])
        return Phrase(owner + zh, f"{his} {' '.join(words)}", word=zh, adult=zh not in lexicon.YOUNG_KIN)

    def person_noun(self, adult: bool = False) -> Noun:
        return self.pick(lexicon.ADULTS if adult or self.chance(0.75) else lexicon.CHILDREN)

    def person(self, adult: bool = False) -> Phrase:
        """A definite person by a noun: 医生, 那位医生, 学生们, 我的朋友."""
        noun = self.person_noun(adult)
        is_adult = noun.group == "adult"
        match self.rng.randrange(8):
            case 0:
                return Phrase(f"那{noun.measure}{noun.zh}", f"that {noun.en}", word=noun.zh, adult=is_adult)
            case 1:
                return Phrase(f"这{noun.measure}{noun.zh}", f"this {noun.en}", word=noun.zh, adult=is_adult)
            case 2:
                return Phrase(f"{noun.zh}们", f"the {noun.plural}", "p", word=noun.zh, adult=is_adult)
            case 3:
                friend = self.pick(lexicon.FRIENDS)
                owner, _, _, his, _ = self.pick(lexicon.PRONOUNS)
                return Phrase(f"{owner}的{friend.zh}", f"{his} {friend.en}", word=friend.zh)
            case _:
                return Phrase(noun.zh, f"the {noun.en}", word=noun.zh, adult=is_adult)

    def subject(self, adult: bool = False, pronouns: float = 0.35, asked: bool = False) -> Phrase:
        """Whom a sentence is about; in a question not "I" or "we"."""
        if asked:
            while (phrase := self.subject(adult, pronouns)).zh in ("我", "我们"):
                pass
            return phrase
        while True:
            roll = self.rng.random()
            if roll < pronouns:
                return self.pronoun()
            if roll < pronouns + 0.15:
                return self.name()
            phrase = self.kin() if roll < pronouns + 0.35 else self.person(adult)
            if phrase.adult or not adult:
                return phrase

    def other(self, subject: Phrase) -> Phrase:
        """A definite person who is not the subject, for objects: him, my mother, the doctor."""
        while True:
            phrase = self.subject(pronouns=0.25)
            same = phrase.zh.strip("们") == subject.zh.strip("们") or (phrase.word and phrase.word == subject.word)
            if not same and (phrase.agreement in ("3", "p") or subject.agreement == "3"):
                return phrase

    def owner(self) -> tuple[str, str]:
        """A possessor with 的: 我的 "my", 小明的 "Xiaoming's", 老师的 "the teacher's"."""
        if self.chance(0.6):
            zh, _, _, his, _ = self.pick(lexicon.PRONOUNS)
            return f"{zh}的", his
        phrase = self.name() if self.chance(0.4) else self.kin()
        return f"{phrase.zh}的", f"{phrase.en}'s"

    # Things

    def noun(self, groups: Sequence[str]) -> Noun:
        return self.pick(lexicon.NOUNS[self.pick(groups)])

    def adjective(self, noun: Noun | Place, group: str = "", predicate: bool = True) -> Adjective:
        """An adjective that fits the noun; as a predicate not a colour, which would need 是 ... 的."""
        names = GROUP_ADJECTIVES[group or noun.group].split()
        colors = [name for name in names if name in COLORS]
        others = [name for name in names if name not in COLORS]
        adjective = ADJECTIVES[self.pick(colors if colors and not predicate and self.chance(0.4) else others)]
        self.combine("adjective-noun", adjective.zh, noun.zh)
        return adjective

    def modifier(self, noun: Noun, probability: float) -> tuple[str, str]:
        """An adjective before the noun, or nothing."""
        if noun.group not in GROUP_ADJECTIVES or not self.chance(probability):
            return "", ""
        adjective = self.adjective(noun, predicate=False)
        if adjective.attribute is None:
            return f"很{adjective.zh}的", f"very {adjective.en}"
        return adjective.attribute, adjective.en

    def counted(self, noun: Noun, kind: str, modifier: tuple[str, str] = ("", "")) -> Phrase:
        """The noun behind a number or another word that takes a measure word: 一本书, 三杯茶, 这些书."""
        zh, en = modifier[0] + noun.zh, join(modifier[1], noun.en)
        many = join(modifier[1], noun.plural)
        unit = noun.unit
        match kind or self.pick(("one", "one", "number")):
            case "one":
                single = f"{article(unit)} of {en}" if unit else article(en)
                return Phrase(f"一{noun.measure}{zh}", single, "3", word=noun.zh)
            case "number":
                number, number_en = self.pick(FEW)
                several = f"{english.plural(unit)} of {en}" if unit else many
                return Phrase(f"{number}{noun.measure}{zh}", f"{number_en} {several}", "p", word=noun.zh)
            case "several":
                several = f"{english.plural(unit)} of {en}" if unit else many
                return Phrase(f"几{noun.measure}{zh}", f"several {several}", "p", word=noun.zh)
            case "this" | "that" as which:
                single = f"{unit} of {en}" if unit else en
                return Phrase(
                    f"{'这' if which == 'this' else '那'}{noun.measure}{zh}", f"{which} {single}", word=noun.zh
                )
            case "these" | "those" as which:
                mass = bool(unit) and noun.agreement == "3"
                which_en = {"these": "this", "those": "that"}[which] if mass else which
                return Phrase(
                    f"{'这' if which == 'these' else '那'}些{zh}",
                    f"{which_en} {many}",
                    noun.agreement if unit else "p",
                    word=noun.zh,
                )
            case "some" | "many" as how:
                words = ("一些", "some") if how == "some" else ("很多", "a lot of")
                return Phrase(words[0] + zh, f"{words[1]} {many}", noun.agreement if unit else "p", word=noun.zh)
            case _:
                raise ValueError(kind)

    def definite(self, noun: Noun, adjectives: float = 0.15) -> Phrase:
        """A thing both speakers know, as a subject: 这本书, 我的书, 书 (the book)."""
        modifier = self.modifier(noun, adjectives)
        kinds = ("this", "that", "these", "those", "the", "the", "mine", "mine")
        kind = self.pick(kinds[:6] if noun.group in lexicon.NOT_OWNED else kinds)
        if kind not in ("mine", "the"):
            return self.counted(noun, kind, modifier)
        if kind == "mine":
            zh, en = self.owner()
            return Phrase(zh + noun.zh, f"{en} {noun.en}", noun.agreement, word=noun.zh)
        return Phrase(modifier[0] + noun.zh, join("the", modifier[1], noun.en), noun.agreement, word=noun.zh)

    def pointed(self, noun: Noun, owned: float = 0.4) -> Phrase:
        """A definite thing as an object: never bare."""
        if self.chance(owned) and noun.group not in lexicon.NOT_OWNED:
            zh, en = self.owner()
            return Phrase(zh + noun.zh, f"{en} {noun.en}", noun.agreement, word=noun.zh)
        return self.counted(noun, self.pick(("this", "that", "these", "those")))

    def bare(self, noun: Noun, rule: str) -> Phrase:
        """The noun alone: "apples" by the rule "plural", "an apple" by the rule "a"; tea and shoes stay as they are."""
        single = noun.en if noun.unit else article(noun.en)
        return Phrase(noun.zh, single if rule == "a" else noun.plural, word=noun.zh)

    # Verb phrases

    def transitive(self, verbs: Sequence[str]) -> tuple[lexicon.Transitive, Noun]:
        """One of the verbs and an object that it takes."""
        chosen = self.pick([v for v in lexicon.TRANSITIVES if v.zh in verbs])
        groups = [g for g in lexicon.NOUNS if chosen.objects == ("ALL",) or g in chosen.objects]
        noun = self.noun(groups)
        self.combine("verb-object", chosen.zh, noun.zh)
        return chosen, noun

    def activity(self, adult: bool) -> Action:
        chosen = self.pick([a for a in lexicon.ACTIVITIES if adult or not a.adult])
        return Action(chosen.verb, chosen.inner, chosen.en, places=chosen.places)

    def action(self, verbs: Sequence[str], form: str, adult: bool = False, activities: float = 0.4) -> Action:
        """An activity, or a verb with an object in the form "bare", "now" (bare behind 正在), "counted" or "pointed"."""
        if self.chance(activities):
            return self.activity(adult)
        verb, noun = self.transitive(verbs)
        if form == "counted":
            kind = self.pick(("one", "one", "one", "number", "number", "several", "some", "many"))
            phrase = self.counted(noun, kind, self.modifier(noun, 0.4))
        elif form == "pointed":
            phrase = self.pointed(noun, owned=0.4 if verb.zh in lexicon.OWNED_OBJECTS else 0.0)
        else:
            single = verb.bare == "a" or (form == "now" and verb.bare == "now a")
            phrase = self.bare(noun, "a" if single and noun.zh not in lexicon.ALWAYS_MANY else "plural")
        return Action(verb.zh, phrase.zh, verb.en, phrase.en, form == "counted", verb.places)

    def place(self, action: Action, subject: Phrase, probability: float) -> Place | None:
        """A place that suits the action, or none."""
        if not action.places or not self.chance(probability):
            return None
        place = self.pick([p for g in action.places for p in lexicon.PLACES[g]])
        self.combine("person-place", subject.word, place.zh)
        return place

    def sight(self, full: float = 0.5) -> Phrase:
        """A landmark, alone or behind its city: 天安门 "Tiananmen", 北京天安门 "Tiananmen in Beijing"."""
        city, zh, *words = self.pick(lexicon.LANDMARKS)
        en = " ".join(words)
        if self.chance(full):
            return Phrase(city + zh, f"{en} in {dict(self.cities())[city]}", word=zh)
        return Phrase(zh, en, word=zh)

    def city(self) -> Phrase:
        zh, en = self.pick(self.cities())
        return Phrase(zh, en, word=zh)

    @staticmethod
    def cities() -> list[tuple[str, str]]:
        return [(zh, " ".join(words)) for zh, *words in lexicon.CITIES]

    def country(self) -> Phrase:
        zh, *words = self.pick(lexicon.COUNTRIES)
        return Phrase(zh, " ".join(words), word=zh)

    # Noun phrases with a relative clause, which Chinese puts before the noun

    def person_clause(self, nouns: Sequence[Noun] = (), ongoing: bool = True) -> Phrase:
        """A person by what he does: 在公园里跑步的男孩 "the boy who is running in the park"."""
        noun = self.pick(nouns) if nouns else self.person_noun()
        adult = noun.group == "adult"
        head = Phrase("", "", word=noun.zh)
        match self.rng.randrange(0 if ongoing else 3, 8):
            case 0 | 1 | 2:
                action = self.action(lexicon.NOW_VERBS, "now", adult)
                place = self.place(action, head, 1.0)
                zh, en = f"{self.located(action, place)}", join("who is", action.ing, place.at if place else "")
            case 3 if ongoing:
                zh, en_thing = self.worn()
                en = f"who is wearing {en_thing}"
            case 4:
                city = self.city()
                zh, en = f"住在{city.zh}", f"who lives in {city.en}"
            case 5:
                skill, *words = self.pick(lexicon.SKILLS)
                zh, en = self.pick(
                    (
                        (
                            f"喜欢{skill}",
                            f"who likes {english.verb(' '.join(words)).ing} {english.verb(' '.join(words)).rest}".strip(),
                        ),
                        (f"会{skill}", f"who can {' '.join(words)}"),
                    )
                )
            case 6:
                sight = self.sight(0.3)
                zh, en = f"参观过{sight.zh}", f"who has visited {sight.en}"
            case _:
                subject = self.subject()
                zh, en = f"{subject.zh}昨天遇到", f"whom {subject.en} met yesterday"
        return Phrase(f"{zh}的{noun.zh}", f"the {noun.en} {en}", word=noun.zh, adult=adult)

    def located(self, action: Action, place: Place | None) -> str:
        """An action going on now as a clause before 的: at its place, or with 正在."""
        return f"在{place.locative}{action.zh}" if place else f"正在{action.zh}"

    def worn(self) -> tuple[str, str]:
        """穿红色的裙子 "a red skirt": clothes with 穿, the rest with 戴."""
        verb = self.pick(("穿", "戴"))
        noun = self.pick(lexicon.NOUNS["clothes" if verb == "穿" else "worn"])
        self.combine("verb-object", verb, noun.zh)
        modifier = self.modifier(noun, 0.6)
        en = join(modifier[1], noun.en)
        return verb + modifier[0] + noun.zh, en if noun.unit else article(en)

    def thing_clause(self) -> tuple[Phrase, Noun]:
        """A thing by what is done with it: 他昨天买的书 "the book that he bought yesterday"."""
        subject = self.subject()
        if self.chance(0.25):
            noun = self.noun(("books", "reference", "carried", "pictures", "devices", "clothes", "worn", "instruments"))
            taker = self.other(subject)
            zh, en = f"{subject.zh}送给{taker.zh}", f"that {subject.en} gave {taker.as_object}"
        else:
            verb, noun = self.transitive(
                ("买", "写", "做", "借", "画", "寄", "收到", "找到", "需要", "喜欢", "读", "看")
            )
            form = self.pick(("past", "wish")) if verb.zh not in ("收到", "找到", "需要", "喜欢") else "plain"
            if form == "past" or verb.zh in ("收到", "找到"):
                time = self.pick(
                    (("昨天", "yesterday"), ("前天", "the day before yesterday"), ("上个星期", "last week"))
                )
                zh = f"{subject.zh}{time[0]}{verb.zh}"
                en = f"that {subject.en} {join(verb.en.past, verb.en.rest)} {time[1]}"
            elif form == "wish":
                want = english.predicate(english.verb("want"), "present", subject.agreement)
                zh, en = f"{subject.zh}想{verb.zh}", f"that {subject.en} {want} to {join(verb.en.base, verb.en.rest)}"
            else:
                zh = f"{subject.zh}{verb.zh}"
                en = f"that {subject.en} {english.predicate(verb.en, 'present', subject.agreement)}"
        return Phrase(f"{zh}的{noun.zh}", f"the {noun.en} {en}", noun.agreement, word=noun.zh), noun
