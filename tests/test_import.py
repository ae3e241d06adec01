"""From Hugging Face: MarianMT folders as OPUS-MT has them, with weights drawn at random and tokenizers learnt here."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from conftest import TinyCorpus, invent_pairs
from toy_run import Runs

from mtkit.checkpoint import load_model
from mtkit.convert.from_huggingface import Languages, import_huggingface
from mtkit.convert.to_huggingface import write_huggingface
from mtkit.describe import describe, verify
from mtkit.errors import ModelError, UsageError
from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.recipe import Recipe
from mtkit.sections.search import Beam, Greedy
from mtkit.text.normalize import normalize
from mtkit.text.tokenizer import Tokenizers
from mtkit.translator import Translator

transformers = pytest.importorskip("transformers", reason="the extra mtkit[huggingface] is not installed")

LINES = [source for source, _ in invent_pairs(16, 5)] + ["the café ß window.", ">>xx<< the baker sees the river."]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def make_marian(folder: Path, **config: Any) -> Path:
    """A random MarianMT model with a unigram SentencePiece model a side, and one vocabulary with ids of its own."""
    folder.mkdir()
    pieces: list[str] = []
    pairs = invent_pairs(400, 1)
    for side, texts in (("source", [one for one, _ in pairs]), ("target", [two for _, two in pairs])):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=70,
            model_type="unigram",
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces += [processor.id_to_piece(number) for number in range(3, processor.get_piece_size())]
    names = ["</s>", "<unk>", *sorted(set(pieces)), ">>xx<<", "<pad>"]
    pad = len(names) - 1
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}), "utf-8")
    shape = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in SHAPE.items()}
    settings = transformers.MarianConfig(
        **{"vocab_size": len(names), "d_model": 32, "activation_function": "swish", "scale_embedding": True}
        | {"max_position_embeddings": 128, "pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad}
        | {"forced_eos_token_id": 0}
        | shape
        | config
    )
    transformers.MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        str(folder / "vocab.json"),
        source_lang="en",
        target_lang="xx",
    ).save_pretrained(folder)
    torch.manual_seed(1)
    network = transformers.MarianMTModel(settings)
    network.final_logits_bias.normal_(std=0.3)
    train_a_little(network, transformers.AutoTokenizer.from_pretrained(folder), pairs)
    generation = {"num_beams": 4, "max_length": 40, "bad_words_ids": [[pad]], "forced_eos_token_id": 0}
    network.generation_config.update(**generation)
    network.save_pretrained(folder)
    return folder


def train_a_little(network: Any, tokenizer: Any, pairs: list[tuple[str, str]]) -> None:
    """Updates of 32 pairs, so that translations depend on their sources and most of them end."""
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    network.train()
    for step in range(100):
        rows = pairs[32 * step % len(pairs) :][:32]
        batch = tokenizer(
            [one for one, _ in rows], text_target=[two for _, two in rows], return_tensors="pt", padding=True
        )
        batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
        optimizer.zero_grad()
        network(**batch).loss.backward()
        optimizer.step()
    network.eval()


SHAPE = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_marian(tmp_path_factory.mktemp("marian") / "opus-mt-en-xx")


@pytest.fixture(scope="module")
def imported(marian: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported") / "model"
    import_huggingface(marian, folder, Languages())
    return folder


def translations(folder: Path, beams: int) -> list[str]:
    """What transformers says; unknown tokens vanish there."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    with torch.no_grad():
        made = network.generate(**tokenizer(LINES, return_tensors="pt", padding=True), num_beams=beams)
    return [normalize(text) for text in tokenizer.batch_decode(made, skip_special_tokens=True)]


def without_unknown(texts: list[str]) -> list[str]:
    return [normalize(text.replace("\ufffd", "")) for text in texts]


@pytest.mark.parametrize("beams", [1, 4])
def test_it_translates_as_it_did(marian: Path, imported: Path, beams: int) -> None:
    translator = Translator.load(imported, "cpu")
    recipe = translator.recipe.search
    assert isinstance(recipe, Beam)
    assert recipe.beam_size == 4
    search = recipe if beams == 4 else Greedy(method="greedy", rules=recipe.rules, lines=recipe.lines)
    theirs = translations(marian, beams)
    assert without_unknown(translator.translate(LINES, search)) == theirs
    assert len(set(theirs)) > 3


def test_ids_are_mtkits_and_pieces_are_theirs(marian: Path, imported: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(marian)
    tokenizers = Tokenizers.load(imported)
    assert tokenizers.source.pieces([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokenizers.source.size == tokenizers.target.size == len(tokenizer) + 1
    for line in LINES:
        assert tokenizers.source.pieces(tokenizers.source.encode(line)) == tokenizer.tokenize(line) or "é" in line
    assert tokenizers.source.unknown_count(tokenizers.source.encode("the café")) == 1
    assert tokenizers.source.symbols == (">>xx<<",)
    assert tokenizers.source.encode(">>xx<< baker")[0] == tokenizers.source.symbol_id(">>xx<<")


def test_there_and_back_logits_are_equal(marian: Path, imported: Path, tmp_path: Path) -> None:
    translator = Translator.load(imported, "cpu")
    back = tmp_path / "back"
    back.mkdir()
    write_huggingface(
        back, load_model(imported, torch.device("cpu"))[0], translator.recipe, translator.tokenizers, imported
    )
    before, after = (json.loads((folder / "vocab.json").read_text("utf-8")) for folder in (marian, back))
    names = list(before)
    logits = []
    for folder, ids in ((marian, before), (back, after)):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        targets = [model.config.decoder_start_token_id, *(ids[name] for name in names[2:30])]
        batch = tokenizer(LINES, return_tensors="pt", padding=True)
        with torch.no_grad():
            made = model(**batch, decoder_input_ids=torch.tensor([targets] * len(LINES))).logits
        logits.append(made[..., [ids[name] for name in names]])
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-5)
    assert translations(back, 4) == without_unknown(translator.translate(LINES))
    again = import_huggingface(back, tmp_path / "again", Languages())
    assert again.model == translator.recipe.model
    assert Tokenizers.load(tmp_path / "again").source.encode_batch(LINES) == translator.tokenizers.source.encode_batch(
        LINES
    )


@pytest.mark.parametrize("config", [{"scale_embedding": False}, {"activation_function": "relu"}])
def test_other_marians(tmp_path: Path, config: dict[str, Any]) -> None:
    """Without the scaling of embeddings these are kept apart from the output."""
    folder = make_marian(tmp_path / "marian", **config)
    recipe = import_huggingface(folder, tmp_path / "model", Languages("zh", "en"))
    assert recipe.languages.source == "zh"
    assert recipe.model.share_embeddings == ("none" if "scale_embedding" in config else "all")
    translator = Translator.load(tmp_path / "model", "cpu")
    assert without_unknown(translator.translate(LINES)) == translations(folder, 4)


def test_pickled_weights_are_read_without_running_them(marian: Path, imported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(marian, tmp_path / "pickled")
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    import_huggingface(folder, tmp_path / "model", Languages())
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == (imported / "model.safetensors").read_bytes()


class Bomb:
    """Says so in a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def _change(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        document = json.loads((folder / name).read_text("utf-8"))
        change(document)
        (folder / name).write_text(json.dumps(document), "utf-8")

    return apply


def _bomb(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Bomb(folder / "exploded")}, folder / "pytorch_model.bin")


def _cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-50])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_change("config.json", lambda one: one.update(model_type="bart")), "model_type is 'bart'"),
        (_change("config.json", lambda one: one.update(normalize_before=True)), "normalize_before: true"),
        (_change("config.json", lambda one: one.update(decoder_ffn_dim=128)), "decoder_ffn_dim: 128"),
        (_change("config.json", lambda one: one.update(activation_function="mish")), "activation_function: mish"),
        (_change("config.json", lambda one: one.update(encoder_layers=3)), r"encoder\.layers\.2\.\S+ is missing"),
        (_change("config.json", lambda one: one.update(d_model=64)), r"do not fit|is \("),
        (_change("config.json", lambda one: one.update(eos_token_id=4000)), "eos_token_id is 4000"),
        (_change("config.json", lambda one: one.pop("d_model")), "d_model is missing"),
        (_change("vocab.json", lambda one: one.update({"<pad>": 5})), "two pieces have one id"),
        (_change("vocab.json", lambda one: one.pop("<unk>")), "the unknown token is None"),
        (_cut("config.json"), "config.json:.* not JSON"),
        (_cut("model.safetensors"), "model.safetensors: cannot be read as safetensors"),
        (_cut("source.spm"), "source.spm: is not a SentencePiece model"),
        (lambda folder: (folder / "vocab.json").unlink(), "vocab.json: no such file"),
        (lambda folder: (folder / "target.spm").unlink(), "target.spm: cannot be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "neither model.safetensors nor pytorch_model.bin"),
        (_bomb, "cannot be read as plain tensors"),
    ],
)
def test_what_is_damaged_or_foreign_is_refused(
    marian: Path, tmp_path: Path, damage: Callable[[Path], object], told: str
) -> None:
    folder = shutil.copytree(marian, tmp_path / "marian")
    damage(folder)
    with pytest.raises(ModelError, match=told):
        import_huggingface(folder, tmp_path / "model", Languages())
    assert not (tmp_path / "model").exists()
    assert not (folder / "exploded").exists()


def test_languages_must_be_known(marian: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(marian, tmp_path / "marian")
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(UsageError, match="--source-language"):
        import_huggingface(folder, tmp_path / "model", Languages())
    assert import_huggingface(folder, tmp_path / "model", Languages("en", "de")).languages.target == "de"


def test_a_newer_list_of_pieces_is_refused(imported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(imported, tmp_path / "model")
    _change("tokenizer.pieces.json", lambda one: one.update(format=2))(folder)
    with pytest.raises(ModelError, match=r"tokenizer\.pieces\.json: has format 2, this mtkit reads up to 1"):
        Translator.load(folder, "cpu")


def test_info_knows_it(imported: Path) -> None:
    verify(imported)
    assert describe(imported)["sha256"]["tokenizer_is_as_trained"]


def test_fine_tuning_lowers_the_loss_from_the_first_validation_on(
    imported: Path, runs: Runs, tiny_corpus: TinyCorpus
) -> None:
    """With a new tag, which gets the id after all pieces; the run's tokenizers number pieces by the list as well."""
    theirs = Recipe.load(imported / "recipe.yaml")
    data = tiny_corpus.values()["data"]
    sections: dict[str, Any] = {
        "model": {**theirs.model.model_dump(), "dropout": 0},
        "tokenizer": theirs.tokenizer.model_dump() | {"user_defined_symbols": [">>xx<<"]},
        "data": {**data, "train": [{**data["train"][0], "tags": ["<talk>"]}]},
    }
    losses = []
    for rate in (1e-12, 3e-4):
        training = {"initialize_from": str(imported), "max_steps": 40, "validate_every_steps": 20, "label_smoothing": 0}
        run = runs.train(f"rate-{rate}", training=training, schedule={"name": "constant", "rate": rate}, **sections)
        losses.append(
            [json.loads((run.checkpoint(step) / "scores.json").read_text("utf-8"))["nll"] for step in (20, 40)]
        )
    before, after = losses
    assert before[0] == pytest.approx(before[1], abs=1e-6), "what it starts from"
    assert after[0] < before[0] - 1e-4
    assert after[1] < after[0]
    tokenizers = Tokenizers.load(run.path)
    assert tokenizers.source.symbol_id("<talk>") == Tokenizers.load(imported).source.size
    assert tokenizers.source.encode("<talk> baker") == [tokenizers.source.size - 1, *tokenizers.source.encode("baker")]
