"""To Hugging Face transformers: a MarianMT folder that says what mtkit says; what MarianMT cannot hold is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TinyCorpus, invent_pairs
from trained_models import save_trained

from mtkit.checkpoint import load_model
from mtkit.convert.export import Wish, export_model
from mtkit.convert.marian import from_marian, halves, to_marian
from mtkit.convert.to_huggingface import refuse_unlike_marian
from mtkit.errors import UsageError
from mtkit.ids import BOS, EOS, PAD, UNK
from mtkit.model.positions import sinusoids
from mtkit.model.transformer import Transformer
from mtkit.sections.data import TokenizerSection
from mtkit.sections.model import Model
from mtkit.sections.search import Beam, Greedy
from mtkit.text.tokenizer import Tokenizers
from mtkit.text.train import train
from mtkit.translator import Translator

transformers = pytest.importorskip("transformers", reason="the extra mtkit[huggingface] is not installed")

LINES = [source for source, _ in invent_pairs(40, 2)]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def model(tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("huggingface") / "model"
    section = {"activation": "swish", "output_bias": True}
    return save_trained(folder, tiny_corpus, tiny_tokenizers, model=section)


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "marian"
    list(export_model(Wish(model, "huggingface", folder, "float32", None, 0, 1)))
    return folder


def loaded(folder: Path) -> tuple[Any, Any]:
    """Tokenizer and model, by the classes that users load them with."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    assert type(network).__name__ == "MarianMTModel"
    return tokenizer, network


def their_logits(folder: Path, sources: list[str], target_ids: list[int]) -> torch.Tensor:
    tokenizer, network = loaded(folder)
    batch = tokenizer(sources, return_tensors="pt", padding=True)
    target_in_BT = torch.tensor([[network.config.decoder_start_token_id, *target_ids]] * len(sources))
    with torch.no_grad():
        return network(**batch, decoder_input_ids=target_in_BT).logits


def our_logits(folder: Path, sources: list[str], target_ids: list[int]) -> torch.Tensor:
    network, _, tokenizers = load_model(folder, torch.device("cpu"))
    rows = [[*ids, EOS] for ids in tokenizers.source.encode_batch(sources)]
    width = max(map(len, rows))
    source_BS = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
    with torch.no_grad():
        return network.logits(network(source_BS, torch.tensor([[BOS, *target_ids]] * len(sources))))


def test_logits_are_equal(model: Path, exported: Path) -> None:
    ids = list(range(4, 40))
    theirs, ours = their_logits(exported, LINES, ids), our_logits(model, LINES, ids)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)
    assert ours.std() > 1


@pytest.mark.parametrize("share", ["all", "target", "none"])
def test_every_way_to_share_embeddings(tiny_corpus: TinyCorpus, tmp_path: Path, share: str) -> None:
    """With vocabularies of their own where sharing allows it."""
    kind = "joint" if share == "all" else "separate"
    section = TokenizerSection(vocabulary=kind, vocab_size=70)  # type: ignore[arg-type]
    tokenizers = train(section, tiny_corpus.source, tiny_corpus.target, [], tmp_path / "tokenizers")
    sections = {"model": {"share_embeddings": share}, "tokenizer": {"vocabulary": kind, "vocab_size": 70}}
    folder = save_trained(tmp_path / "model", tiny_corpus, tokenizers, 1, **sections)
    list(export_model(Wish(folder, "huggingface", tmp_path / "out", "float32", None, 0, 1)))
    ids = list(range(4, 20))
    ours = our_logits(folder, LINES[:5], ids)
    torch.testing.assert_close(their_logits(tmp_path / "out", LINES[:5], ids), ours, rtol=0, atol=1e-4)


def test_greedy_and_beam_by_the_generation_config(model: Path, exported: Path) -> None:
    tokenizer, network = loaded(exported)
    assert network.generation_config.num_beams == 4
    translator = Translator.load(model, "cpu")
    batch = tokenizer(LINES, return_tensors="pt", padding=True)
    greedy = Greedy(method="greedy", rules=translator.recipe.search.rules)
    for options, search in (({}, translator.recipe.search), ({"num_beams": 1}, greedy)):
        made = network.generate(**batch, **options)
        texts = tokenizer.batch_decode(made, skip_special_tokens=True)
        assert texts == translator.translate(LINES, search)


def test_the_export_verifies_itself(model: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    reports = list(export_model(Wish(model, "huggingface", tmp_path / "out", "float32", tmp_path / "lines", 20, 1)))
    assert len(reports) == 5
    for report, search in ((reports[1], "greedy"), (reports[3], "beam 4")):
        assert report.startswith(search)
        assert "20 of 20 lines identical" in report
        assert float(report.rsplit(" ", 1)[1]) < 1e-3


def test_the_same_ids_from_text(model: Path, exported: Path) -> None:
    tokenizer, _ = loaded(exported)
    ours = Translator.load(model, "cpu").tokenizers.source
    for text in [*LINES[:5], "the café", "<news> the baker sees the river.", ""]:
        assert tokenizer(text)["input_ids"] == [*ours.encode(text), EOS]
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id) == (PAD, UNK, EOS)


def test_the_card_tells_scores_and_lineage(exported: Path) -> None:
    card = (exported / "README.md").read_text("utf-8")
    assert card.startswith("---\n")
    for part in ("AutoModelForSeq2SeqLM", "en -> xx", "weights", "sha256", "steps"):
        assert part in card


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"norm": "pre"}, "model.norm: pre"),
        ({"positions": "rotary"}, "model.positions: rotary"),
        ({"positions": "learned", "norm": "pre"}, "model.norm: pre .* and model.positions: learned"),
        ({"positions": "none"}, "model.positions: none"),
    ],
)
def test_what_marian_cannot_hold_is_refused_by_name(section: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        refuse_unlike_marian(Model.model_validate(section))


def test_what_generation_cannot_say_is_told(
    tiny_corpus: TinyCorpus, tiny_tokenizers: Tokenizers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search = Beam(beam_size=3, length_normalization="wu", coverage_penalty=0.1).model_dump()
    folder = save_trained(tmp_path / "model", tiny_corpus, tiny_tokenizers, 1, search=search)
    list(export_model(Wish(folder, "huggingface", tmp_path / "out", "float32", None, 0, 1)))
    assert "search.length_normalization: wu, search.coverage_penalty: 0.1" in caplog.text
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text("utf-8"))["num_beams"] == 3


@pytest.mark.parametrize("share", ["all", "target", "none"])
def test_there_and_back_is_the_identity(share: str) -> None:
    section = Model.model_validate(
        {"d_model": 12, "heads": 2, "d_ff": 20, "encoder_layers": 2, "decoder_layers": 1, "share_embeddings": share}
        | {"output_bias": True}
    )
    torch.manual_seed(1)
    weights = dict(Transformer(section, 30, 30).named_parameters())
    back = from_marian(to_marian(weights, section), section)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)
    assert torch.equal(
        sinusoids(9, 12, torch.device("cpu"))[:, halves(12)][1, :6], sinusoids(9, 12, torch.device("cpu"))[1, ::2]
    )
