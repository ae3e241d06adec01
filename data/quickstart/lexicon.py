"""The words: small tables of Chinese and English, and what goes with what.

Each entry is the Chinese word, then (for nouns) its measure word, then the English. Entries are separated by ";".
A noun whose English is "cup of tea" is a mass noun with its unit; "pair of shoes" is one that has only a plural.
Which adjective fits which noun, and which object fits which verb, is written here too, so that sentences make sense.
"""

from __future__ import annotations

from dataclasses import dataclass

import english

PLURAL_ONLY = {"shoes", "pants", "gloves", "glasses", "noodles", "chopsticks"}


@dataclass(frozen=True)
class Noun:
    """A noun: how Chinese counts it, and how English does."""

    zh: str
    measure: str
    en: str
    unit: str  # "cup" of tea; empty for nouns that are counted directly
    group: str

    @property
    def plural(self) -> str:
        return self.en if self.unit else english.plural(self.en)

    @property
    def agreement(self) -> str:
        return "p" if self.en in PLURAL_ONLY else "3"


@dataclass(frozen=True)
class Adjective:
    """An adjective, and its form before a noun: direct ("新书"), with 的, or (None) only behind 很."""

    zh: str
    en: str
    attribute: str | None


@dataclass(frozen=True)
class Place:
    """A place: 公园 / 公园里, "park" / "in the park"."""

    zh: str
    en: str
    locative: str
    at: str
    group: str


@dataclass(frozen=True)
class Activity:
    """Something one does without a further object: verb and inner object are split by 了 and 过."""

    verb: str
    inner: str
    en: english.Verb
    places: tuple[str, ...]
    adult: bool = False

    @property
    def zh(self) -> str:
        return self.verb + self.inner


@dataclass(frozen=True)
class Transitive:
    """A verb with an object. `bare` says what an object without measure word means: "plural", "a" or "none"."""

    zh: str
    en: english.Verb
    objects: tuple[str, ...]
    places: tuple[str, ...]
    bare: str


def _rows(text: str) -> list[list[str]]:
    return [entry.split() for entry in text.replace("\n", " ").split(";") if entry.strip()]


def _nouns(group: str, text: str) -> list[Noun]:
    nouns = []
    for zh, measure, *words in _rows(text):
        unit, of, noun = " ".join(words).partition(" of ")
        nouns.append(Noun(zh, measure, noun if of else unit, unit if of else "", group))
    return nouns


NOUN_TABLES = {
    "books": "书 本 book; 小说 本 novel",
    "reference": "词典 本 dictionary; 课本 本 textbook",
    "papers": "杂志 本 magazine; 报纸 份 newspaper",
    "texts": "故事 个 story; 诗 首 poem; 文章 篇 article",
    "letters": "信 封 letter; 明信片 张 postcard",
    "fruit": """苹果 个 apple; 橙子 个 orange; 香蕉 根 banana; 草莓 颗 strawberry; 西瓜 个 watermelon; 桃子 个 peach;
                柠檬 个 lemon""",
    "vegetables": "西红柿 个 tomato; 土豆 个 potato; 胡萝卜 根 carrot; 黄瓜 根 cucumber",
    "dishes": """饺子 个 dumpling; 包子 个 steamed bun; 面条 碗 bowl of noodles; 米饭 碗 bowl of rice;
                 豆腐 块 piece of tofu; 牛肉 块 piece of beef; 三明治 个 sandwich""",
    "sweets": "蛋糕 块 piece of cake; 饼干 块 cookie; 面包 块 piece of bread",
    "candy": "巧克力 块 piece of chocolate; 糖果 颗 piece of candy; 冰淇淋 盒 box of ice cream",
    "drinks": """茶 杯 cup of tea; 咖啡 杯 cup of coffee; 牛奶 杯 glass of milk; 果汁 杯 glass of juice;
                 啤酒 瓶 bottle of beer; 水 杯 glass of water; 汤 碗 bowl of soup""",
    "clothes": "裙子 条 skirt; 衬衫 件 shirt; 外套 件 coat; 毛衣 件 sweater; 裤子 条 pair of pants; 鞋子 双 pair of shoes",
    "worn": "帽子 顶 hat; 眼镜 副 pair of glasses; 手表 块 watch; 围巾 条 scarf; 手套 双 pair of gloves",
    "devices": "手机 部 phone; 电脑 台 computer; 相机 台 camera",
    "vehicles": "自行车 辆 bicycle; 汽车 辆 car; 摩托车 辆 motorcycle",
    "furniture": "桌子 张 table; 椅子 把 chair; 床 张 bed; 沙发 张 sofa; 灯 盏 lamp",
    "dishware": "杯子 个 cup; 盘子 个 plate; 瓶子 个 bottle; 花瓶 个 vase",
    "cutlery": "刀 把 knife; 筷子 双 pair of chopsticks",
    "carried": "雨伞 把 umbrella; 书包 个 schoolbag; 地图 张 map; 箱子 个 box",
    "personal": "钥匙 把 key; 钱包 个 wallet; 护照 本 passport",
    "pens": "铅笔 支 pencil; 钢笔 支 pen",
    "openings": "门 扇 door; 窗户 扇 window",
    "instruments": "吉他 把 guitar; 钢琴 架 piano; 小提琴 把 violin",
    "gifts": "礼物 件 gift; 照片 张 photo",
    "pictures": "油画 幅 painting; 照片 张 photo",
    "films": "电影 部 movie",
    "music": "歌 首 song",
    "plants": "花 朵 flower; 树 棵 tree",
    "pets": "猫 只 cat; 狗 只 dog; 兔子 只 rabbit; 鸟 只 bird",
    "farm": "马 匹 horse; 牛 头 cow; 羊 只 sheep; 鸭子 只 duck; 猪 头 pig",
    "wild": "猴子 只 monkey; 熊猫 只 panda; 老虎 只 tiger; 大象 头 elephant; 狐狸 只 fox; 狼 只 wolf; 老鼠 只 mouse",
    "buildings": "房子 座 house; 桥 座 bridge; 山 座 mountain",
}
NOUNS = {group: _nouns(group, text) for group, text in NOUN_TABLES.items()}

# People that a child cannot be are "adult"; both lists take the same sentences otherwise.
ADULTS = _nouns(
    "adult",
    """老师 位 teacher; 医生 位 doctor; 护士 位 nurse; 司机 位 driver; 警察 位 police officer; 厨师 位 chef;
       工人 位 worker; 农民 位 farmer; 画家 位 painter; 作家 位 writer; 歌手 位 singer; 律师 位 lawyer;
       经理 位 manager; 记者 位 journalist; 科学家 位 scientist; 工程师 位 engineer; 教授 位 professor; 演员 位 actor;
       服务员 位 waiter; 飞行员 位 pilot; 运动员 位 athlete; 邻居 位 neighbor; 客人 位 guest; 游客 位 tourist;
       男人 个 man; 女人 个 woman""",
)
CHILDREN = _nouns("child", "男孩 个 boy; 女孩 个 girl; 孩子 个 child; 学生 个 student; 同学 个 classmate")
JOBS = ADULTS[:21]
FRIENDS = _nouns("friend", "朋友 个 friend; 同学 个 classmate; 同事 位 colleague; 邻居 位 neighbor; 老师 位 teacher")
KIN = _rows(
    """爸爸 father; 妈妈 mother; 哥哥 older brother; 弟弟 younger brother; 姐姐 older sister; 妹妹 younger sister;
       爷爷 grandfather; 奶奶 grandmother; 叔叔 uncle; 阿姨 aunt; 儿子 son; 女儿 daughter"""
)
YOUNG_KIN = {"弟弟", "妹妹", "儿子", "女儿"}
NAMES = _rows(
    "小明 Xiaoming; 小红 Xiaohong; 李华 Li Hua; 王芳 Wang Fang; 张伟 Zhang Wei; 大卫 David; 玛丽 Mary; 安娜 Anna"
)

# Chinese, subject, object, possessive, agreement ("1", "2", "3", "p").
PRONOUNS = _rows(
    "我 I me my 1; 你 you you your 2; 他 he him his 3; 她 she her her 3; 我们 we us our p; 你们 you you your 2; 他们 they them their p"
)

GROUP_ADJECTIVES = {
    "books": "新 旧 有意思 便宜 贵 厚 薄 有用 难",
    "reference": "新 旧 便宜 贵 厚 薄 有用 重",
    "papers": "新 旧 有意思 便宜 厚 薄",
    "texts": "长 短 有意思 感人 重要 难 简单 有名",
    "letters": "感人 有意思 特别",
    "fruit": "大 小 新鲜 甜 酸 便宜 贵 好吃",
    "vegetables": "大 小 新鲜 便宜 贵",
    "dishes": "好吃 热 便宜 贵",
    "sweets": "好吃 甜 便宜 贵",
    "candy": "好吃 甜 便宜 贵",
    "drinks": "热 好喝 便宜 贵",
    "clothes": "红色 蓝色 黑色 白色 黄色 灰色 新 旧 漂亮 便宜 贵 干净 脏 舒服",
    "worn": "黄色 蓝色 黑色 白色 灰色 新 旧 漂亮 便宜 贵",
    "devices": "黑色 白色 新 旧 便宜 贵 轻 好用 慢",
    "vehicles": "红色 黄色 蓝色 黑色 绿色 新 旧 漂亮 便宜 贵 快 脏",
    "furniture": "白色 黄色 新 旧 大 小 漂亮 便宜 贵 干净 重",
    "dishware": "白色 黄色 蓝色 新 旧 大 小 漂亮 便宜 干净 脏",
    "cutlery": "新 旧 便宜 干净 脏 好用 长 短",
    "carried": "红色 黄色 绿色 新 旧 漂亮 便宜 大",
    "personal": "红色 蓝色 新 旧",
    "pens": "红色 黄色 绿色 新 旧 便宜 好用",
    "openings": "白色 绿色 新 旧 大 小 干净 脏",
    "instruments": "新 旧 漂亮 便宜 贵",
    "gifts": "漂亮 特别 有意思",
    "pictures": "漂亮 特别 有名 旧 大 小",
    "films": "新 长 有意思 感人 有名 特别",
    "music": "新 长 短 感人 有名",
    "plants": "红色 大 小 漂亮 特别",
    "pets": "白色 黑色 可爱 聪明 胖 大",
    "farm": "白色 黑色 强壮 胖 大",
    "wild": "可爱 聪明 危险 大 胖 瘦",
    "buildings": "大 小 旧 漂亮 有名 危险",
    "place": "大 小 新 旧 漂亮 安静 干净 热闹 有名 现代 远",
    "person": "高 矮 胖 瘦 年轻 聪明 友好 善良 勇敢 健康 强壮 有名 有钱 努力 可爱 有礼貌",
    "state": "忙 累 高兴 难过 生气 饿 渴 紧张 冷",
}


def _adjectives(form: str, text: str) -> dict[str, Adjective]:
    shapes = {"direct": "{}", "de": "{}的", "very": ""}
    return {zh: Adjective(zh, " ".join(en), shapes[form].format(zh) or None) for zh, *en in _rows(text)}


COLORS = _adjectives("de", "红色 red; 蓝色 blue; 黑色 black; 白色 white; 黄色 yellow; 绿色 green; 灰色 gray")
ADJECTIVES = (
    _adjectives("direct", "新 new; 旧 old; 大 big; 小 small; 长 long; 短 short; 厚 thick; 薄 thin")
    | _adjectives(
        "de",
        """有意思 interesting; 便宜 cheap; 有用 useful; 有名 famous; 感人 moving; 重要 important; 简单 simple;
           新鲜 fresh; 好吃 delicious; 好喝 tasty; 漂亮 beautiful; 干净 clean; 舒服 comfortable; 好用 handy;
           特别 special; 可爱 cute; 聪明 smart; 强壮 strong; 危险 dangerous; 安静 quiet; 热闹 lively; 现代 modern;
           年轻 young; 友好 friendly; 善良 kind; 勇敢 brave; 健康 healthy; 有钱 rich; 努力 hardworking; 有礼貌 polite""",
    )
    | _adjectives(
        "very",
        """贵 expensive; 难 difficult; 甜 sweet; 酸 sour; 热 hot; 脏 dirty; 轻 light; 慢 slow; 快 fast; 重 heavy;
           胖 fat; 瘦 thin; 远 far; 高 tall; 矮 short; 忙 busy; 累 tired; 高兴 happy; 难过 sad; 生气 angry; 饿 hungry;
           渴 thirsty; 紧张 nervous; 冷 cold; 暖和 warm; 凉快 cool""",
    )
    | COLORS
)

PLACE_TABLES = {
    # group: Chinese, localizer ("-" for none), preposition, English
    "park": "公园 里 in park; 院子 里 in yard",
    "nature": "花园 里 in garden; 森林 里 in forest; 村子 里 in village",
    "shore": "海 边 by sea; 河 边 by river; 湖 边 by lake; 沙滩 上 on beach",
    "square": "广场 上 in square; 街 上 on street",
    "sport": "操场 上 on playground; 体育馆 里 in gym",
    "water": "游泳池 里 in swimming pool",
    "study": "图书馆 里 in library; 教室 里 in classroom; 宿舍 里 in dormitory; 办公室 里 in office",
    "room": "房间 里 in room; 客厅 里 in living room",
    "kitchen": "厨房 里 in kitchen",
    "eating": "餐厅 里 in restaurant; 咖啡馆 里 in coffee shop; 酒店 里 in hotel",
    "shop": "商店 里 in store; 超市 里 in supermarket; 市场 里 in market",
    "work": """医院 里 in hospital; 银行 里 in bank; 邮局 里 in post office; 工厂 里 in factory; 学校 里 in school;
               农场 里 on farm""",
    "visit": "书店 里 in bookstore; 博物馆 里 in museum; 动物园 里 in zoo; 电影院 里 in movie theater; 剧院 里 in theater",
    "station": "火车站 - at train station; 机场 - at airport; 公共汽车站 - at bus stop",
}
PLACES = {
    group: [
        Place(zh + (localizer if localizer == "边" else ""), " ".join(en), zh + localizer.strip("-"),
              f"{preposition} the {' '.join(en)}", group)
        for zh, localizer, preposition, *en in _rows(text)
    ]
    for group, text in PLACE_TABLES.items()
}  # fmt: skip
HOME = Place("家", "home", "家里", "at home", "room")
PLACES["room"].append(HOME)
# These are counted with 家, the others with 个.
HOUSES = {p.zh for g in ("eating", "shop") for p in PLACES[g]} | {"书店", "医院", "银行", "工厂", "电影院", "剧院"}
GOALS = [
    p for g in ("park", "nature", "sport", "study", "eating", "shop", "work", "visit", "station") for p in PLACES[g]
]

CITIES = _rows(
    """北京 Beijing; 上海 Shanghai; 广州 Guangzhou; 西安 Xi'an; 杭州 Hangzhou; 成都 Chengdu; 南京 Nanjing; 武汉 Wuhan;
       香港 Hong Kong; 苏州 Suzhou; 巴黎 Paris; 伦敦 London; 东京 Tokyo; 纽约 New York; 罗马 Rome; 莫斯科 Moscow"""
)
COUNTRIES = _rows(
    """中国 China; 法国 France; 英国 Britain; 美国 the United States; 日本 Japan; 德国 Germany; 意大利 Italy;
       加拿大 Canada; 俄罗斯 Russia; 印度 India"""
)
TOWNS = {zh for zh, *_ in CITIES + COUNTRIES}
LANDMARKS = _rows(
    """北京 天安门 Tiananmen; 北京 故宫 the Forbidden City; 北京 颐和园 the Summer Palace; 北京 天坛 the Temple of Heaven;
       上海 外滩 the Bund; 上海 豫园 Yu Garden; 西安 钟楼 the Bell Tower; 西安 兵马俑 the Terracotta Army;
       杭州 西湖 West Lake; 南京 夫子庙 the Confucius Temple; 武汉 黄鹤楼 the Yellow Crane Tower;
       香港 太平山 Victoria Peak; 苏州 虎丘 Tiger Hill; 巴黎 埃菲尔铁塔 the Eiffel Tower; 巴黎 卢浮宫 the Louvre;
       伦敦 大本钟 Big Ben; 伦敦 塔桥 Tower Bridge; 东京 浅草寺 Senso-ji Temple; 纽约 中央公园 Central Park;
       纽约 自由女神像 the Statue of Liberty; 罗马 斗兽场 the Colosseum; 莫斯科 红场 Red Square"""
)

OUTSIDE = ("park", "nature", "shore", "square")
INSIDE = ("study", "room")


def _activities(places: tuple[str, ...], text: str, adult: bool = False) -> list[Activity]:
    activities = []
    for zh, *en in _rows(text):
        verb, _, inner = zh.partition("/")
        activities.append(Activity(verb, inner, english.verb(" ".join(en)), places, adult))
    return activities


ACTIVITIES = [
    *_activities(("park", "nature", "shore", "sport"), "跑/步 run; 锻炼/ exercise; 散/步 take a walk"),
    *_activities(OUTSIDE, "跳/舞 dance; 唱/歌 sing; 拍/照 take photos; 聊/天 chat; 画/画 draw pictures; 骑/自行车 ride a bicycle"),
    *_activities(("water",), "游/泳 swim"),
    *_activities(("sport", "park"), "踢/足球 play soccer; 打/篮球 play basketball; 打/网球 play tennis; 打/乒乓球 play table tennis"),
    *_activities(INSIDE, "学习/ study; 上/网 surf the Internet; 休息/ rest; 写/作业 do homework; 下/棋 play chess"),
    *_activities(("room",), "看/电视 watch TV; 睡/觉 sleep; 听/音乐 listen to music; 弹/钢琴 play the piano"),
    *_activities((), "打扫/房间 clean the room"),
    *_activities(("room", "park"), "弹/吉他 play the guitar; 拉/小提琴 play the violin; 玩/游戏 play games"),
    *_activities(("kitchen",), "做/饭 cook; 洗/碗 wash dishes"),
    *_activities(("eating", "room"), "吃/早饭 have breakfast; 吃/午饭 have lunch; 吃/晚饭 have dinner"),
    *_activities(("shop",), "买/衣服 buy clothes; 买/东西 buy things; 买/菜 buy vegetables"),
    *_activities(("work", "eating", "shop", "study"), "工作/ work; 开/会 have a meeting", adult=True),
    *_activities(("shore",), "钓/鱼 go fishing", adult=True),
]  # fmt: skip
# What one does at which time of the day.
HABITS = {
    "morning": _activities((), "起/床 get up; 上/班 go to work; 吃/早饭 have breakfast; 跑/步 run"),
    "afternoon": _activities((), "下/班 get off work; 回/家 go home; 喝/茶 drink tea; 散/步 take a walk"),
    "evening": _activities((), "睡/觉 go to bed; 回/家 go home; 吃/晚饭 have dinner; 看/电视 watch TV"),
}
SKILLS = _rows(
    """游泳 swim; 跳舞 dance; 开车 drive; 做饭 cook; 弹钢琴 play the piano; 弹吉他 play the guitar; 滑雪 ski; 滑冰 skate;
       拉小提琴 play the violin; 下棋 play chess; 打网球 play tennis; 骑马 ride a horse; 骑自行车 ride a bicycle"""
)
LANGUAGES = _rows("汉语 Chinese; 英语 English; 法语 French; 德语 German; 日语 Japanese; 俄语 Russian")
SUBJECTS = LANGUAGES + _rows("数学 math; 历史 history; 物理 physics; 化学 chemistry; 音乐 music")


def _transitives(bare: str, text: str) -> list[Transitive]:
    """Rows: Chinese, English words joined by "_", object groups joined by "+", place groups joined by "+" or "-"."""
    return [
        Transitive(
            zh,
            english.verb(en.replace("_", " ")),
            tuple(objects.split("+")),
            tuple(filter(None, places.strip("-").split("+"))),
            bare,
        )
        for zh, en, objects, places in _rows(text)
    ]


TRANSITIVES = [
    *_transitives(
        "now a",
        """买 buy fruit+vegetables+dishes+sweets+candy+drinks+books+reference+papers+clothes+worn+devices+furniture+dishware+cutlery+pens+plants shop;
           吃 eat fruit+dishes+sweets+candy eating+room; 读 read books+texts study+room+park;
           看 read books+papers study+room+park; 看 watch films room; 看 look_at pictures -; 听 listen_to music room;
           写 write texts+letters study+room;
           修 repair devices+vehicles+furniture+openings+instruments -; 用 use devices+reference+cutlery+pens -;
           画 draw plants+pets+wild+farm+buildings park+nature+room""",
    ),
    *_transitives(
        "plural",
        """卖 sell fruit+vegetables+sweets+candy+clothes+worn+devices+vehicles+books+furniture shop; 喝 drink drinks eating+room;
           做 make dishes+sweets kitchen; 洗 wash clothes+fruit+vegetables+dishware -; 借 borrow books+reference+vehicles+carried -;
           寄 send gifts+letters -; 养 raise pets+farm -; 种 grow vegetables+plants park+nature; 收到 receive gifts+letters -;
           带 bring gifts+carried+candy+drinks -""",
    ),
    *_transitives("a", "穿 wear clothes -; 戴 wear worn -"),
    *_transitives(
        "none",
        """找 look_for personal+carried+worn+pens+devices -; 丢 lose personal+carried+worn+devices+pens -; 喜欢 like ALL -;
           需要 need ALL -; 看见 see wild+pets+farm -; 找到 find personal+carried+worn+devices+pets -""",
    ),
]
# Small things are always many when no number says otherwise: 正在吃草莓 "is eating strawberries".
ALWAYS_MANY = {"草莓", "饺子", "饼干", "土豆", "胡萝卜", "包子"}

# Which verbs make sense going on now, as a habit, as a finished act, as a plan, and as an experience.
SENSIBLE = {
    "now": "买 卖 吃 喝 做 读 看 听 写 洗 修 画 借 寄 种 用",
    "habit": "吃 喝 做 读 看 听 写 洗 卖 画 用 穿 戴",
    "past": "买 卖 吃 喝 做 读 看 听 写 洗 修 画 借 寄 收到 带 丢 看见 找到",
    "plan": "买 卖 吃 喝 做 读 看 听 写 洗 修 画 借 寄 带",
    "wish": "买 卖 吃 喝 做 读 看 听 写 洗 修 画 借 寄 带 养 种 用",
    "experience": "买 吃 喝 做 读 看 听 写 修 画 养 种 用",
    "owned": "读 看 洗 修 借 用 卖 找 丢",  # 洗我的衬衫, but not 吃我的苹果
}
VERBS_OF = {use: tuple(verbs.split()) for use, verbs in SENSIBLE.items()}
NOW_VERBS, HABIT_VERBS, PAST_VERBS = VERBS_OF["now"], VERBS_OF["habit"], VERBS_OF["past"]
PLAN_VERBS, WISH_VERBS, EXPERIENCE_VERBS = VERBS_OF["plan"], VERBS_OF["wish"], VERBS_OF["experience"]
OWNED_OBJECTS = VERBS_OF["owned"]
NOT_OWNED = ("buildings", "wild", "farm")
# Groups with adjectives enough for "both ... and ...".
DESCRIBED = tuple(group for group in NOUNS if group not in ("openings", "personal"))
