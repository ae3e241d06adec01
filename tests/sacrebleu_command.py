"""The sacrebleu command as an oracle, and invented texts to ask it about."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEXTS = {
    "en": (
        ["The baker's cart hasn't moved.", "Two geese, it seems, own a pond!", "", "She paid $4.50 for thread."],
        ["The baker's cart has not moved.", "It seems two geese own a pond.", "Rain again.", "She paid $4.50 for one."],
        ["The baker's own cart hasn't moved.", "This pond belongs to two geese.", "Rain.", "Thread cost her $4.50."],
    ),
    "de": (
        ["Der Müller schläft im Heu.", "Über den Zaun springt ein Fuchs.", "„Wohin?“, fragte Jörg."],
        ["Der Müller schlief im Heu.", "Ein Fuchs springt über den Zaun.", "„Wohin denn?“, fragte Jörg."],
        ["Im Heu schläft der Müller.", "Über den Zaun sprang der Fuchs.", "Jörg fragte: „Wohin?“"],
    ),
    "zh": (
        ["木匠把梯子靠在墙上。", "我们明天去河边钓鱼，好吗？", "她买了3个西瓜。"],
        ["木匠把梯子靠着墙放好。", "明天我们去河边钓鱼好吗？", "她买了三个西瓜。"],
        ["梯子被木匠靠在了墙上。", "我们明天到河边去钓鱼吧？", "她买了3个大西瓜。"],
    ),
    "ja": (
        ["大工は梯子を壁に立てかけた。", "明日は川へ釣りに行こう。", "傘を二本買いました。"],
        ["大工が梯子を壁に立てかけた。", "明日、川に釣りに行きましょう。", "傘を２本買いました。"],
        ["梯子は大工が壁にかけた。", "明日川で釣りをしよう。", "二本の傘を買いました。"],
    ),
}  # fmt: skip


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """Write lines as they are, each ended by LF."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def printed(
    folder: Path, systems: Sequence[Sequence[str]], references: Sequence[Sequence[str]], *options: str, seed: str = ""
) -> str:
    """What the sacrebleu command prints, with twelve decimals; `seed` is SACREBLEU_SEED."""
    names = [f"system{number}" for number in range(len(systems))]
    inputs = [str(write_lines(folder / name, lines)) for name, lines in zip(names, systems, strict=True)]
    against = [str(write_lines(folder / f"reference{number}", lines)) for number, lines in enumerate(references)]
    arguments = [sys.executable, "-m", "sacrebleu", *against, "-i", *inputs, "-w", "12", "--no-color", *options]
    environment = os.environ | ({"SACREBLEU_SEED": seed} if seed else {})
    return subprocess.run(arguments, capture_output=True, check=True, encoding="utf-8", env=environment).stdout


def command(
    folder: Path, hypotheses: Sequence[str], references: Sequence[Sequence[str]], *options: str, seed: str = ""
) -> dict[str, dict[str, Any]]:
    """What the sacrebleu command prints for one system, by the metric's own name."""
    found = json.loads(printed(folder, [hypotheses], references, *options, seed=seed))
    return {one["name"]: one for one in (found if isinstance(found, list) else [found])}
