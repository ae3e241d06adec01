"""The README.md of an exported model: what it is, how good, what it was made from, how it is used."""

from pathlib import Path

from mtkit import __version__
from mtkit.describe import describe, render
from mtkit.recipe import Recipe
from mtkit.text.tokenizer import Tokenizers

_EXAMPLE = """```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = AutoModelForSeq2SeqLM.from_pretrained(FOLDER)
batch = tokenizer(["..."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```"""


def model_card(home: Path, recipe: Recipe, tokenizers: Tokenizers) -> str:
    """The card for the Hugging Face format, of the model in the folder `home`, with its scores and its lineage."""
    languages = recipe.languages
    rules = recipe.search.rules
    limit = f"{rules.max_length_ratio:g} target tokens a source token and {rules.max_length_offset} more"
    facts = render(describe(home))
    symbols = ", ".join(f"`{symbol}`" for symbol in tokenizers.source.symbols)
    return "\n".join(
        [
            "---",
            f'language: ["{languages.source}", "{languages.target}"]',
            "library_name: transformers",
            "pipeline_tag: translation",
            "tags: [translation, marian, mtkit]",
            "---",
            "",
            f"# Translation from {languages.source} to {languages.target}",
            "",
            f"A Transformer trained with mtkit, exported by mtkit {__version__} as a MarianMT model.",
            "",
            _EXAMPLE,
            "",
            "## Scores and lineage",
            "",
            "As `mtkit info` tells them of the model that this was exported from:",
            "",
            "```",
            facts,
            "```",
            "",
            "## What differs from mtkit",
            "",
            f"- mtkit ends a translation after {limit}; here `max_length` alone is the limit.",
            "- mtkit splits a source that is too long; here it is cut at `model_max_length`, with `truncation=True`.",
            "- mtkit brings text to NFC and makes control characters and runs of white space one space; here only the "
            "SentencePiece model's own rule applies.",
            "- mtkit reads `</s>`, `<unk>` and `<pad>` in a sentence as text; here they are special tokens.",
            *([f"- These symbols may begin a sentence: {symbols}."] if symbols else []),
            "",
        ]
    )
