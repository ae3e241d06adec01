"""Translate with Hugging Face's MarianMT model, text in to text out; the other end of translate_peers.py.

    python huggingface_translate.py FOLDER THREADS

FOLDER is an export by `mtkit export --to huggingface`. A line of JSON in, {"lines": [...], "beam_size": 5,
"length_penalty": 1.0, "batch_size": 32, "max_length": 200}, a line of JSON out: {"seconds": ..., "texts": [...]}.
Lines are sorted by length and padded a batch at a time.
"""

import json
import os
import sys
import time
from typing import Any

import torch

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


def translations(model: Any, tokenizer: Any, task: dict[str, Any]) -> list[str]:
    """The best translation of each line."""
    lines, size = task["lines"], task["batch_size"]
    order = sorted(range(len(lines)), key=lambda place: len(lines[place]), reverse=True)
    found = {}
    options = {"num_beams": task["beam_size"], "do_sample": False, "max_new_tokens": task["max_length"]}
    if task["beam_size"] > 1:
        options["length_penalty"] = task["length_penalty"]
    for start in range(0, len(order), size):
        places = order[start : start + size]
        batch = tokenizer([lines[place] for place in places], return_tensors="pt", padding=True)
        with torch.inference_mode():
            ids = model.generate(**batch, **options)
        found |= dict(zip(places, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True))
    return [found[place] for place in range(len(lines))]


def main() -> None:
    """Serve until stdin ends."""
    torch.set_num_threads(int(sys.argv[2]))
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1]).eval()
    for row in sys.stdin:
        task = json.loads(row)
        began = time.perf_counter()
        texts = translations(model, tokenizer, task)
        print(json.dumps({"seconds": time.perf_counter() - began, "texts": texts}), flush=True)


if __name__ == "__main__":
    main()
