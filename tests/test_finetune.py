"""Starting from another model: its weights and tokenizer, what may differ, what stays frozen, and new symbols."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TinyCorpus
from torch import Tensor
from torch_model import build
from toy_run import Runs, assert_same, before_step, events, signalled

from mtkit import pipeline
from mtkit.checkpoint import load_checkpoint, load_tensors
from mtkit.errors import ModelError, RecipeError
from mtkit.files import sha256_file, write_json
from mtkit.folders import RunFolder, read_lineage
from mtkit.text.extend import extended
from mtkit.text.tokenizer import Tokenizers
from mtkit.training.finetune import freeze, trained
from mtkit.training.schedule import learning_rate

NEVER = {"max_steps": 0}


@pytest.fixture
def initial(runs: Runs) -> RunFolder:
    """A run of six updates, with a model folder."""
    run = runs.train("initial", training={"max_steps": 6}, model={"encoder_layers": 2})
    pipeline.average(run, "last", 1)
    return run


def tune(runs: Runs, folder: Path, name: str = "tuned", **sections: Any) -> RunFolder:
    """Train from a model; the run's tokenizer and shards are made from scratch."""
    training = {
        "max_steps": 3,
        "validate_every_steps": 3,
        "initialize_from": str(folder),
        **sections.pop("training", {}),
    }
    (runs.folder / name).mkdir(exist_ok=True)
    shape = {"encoder_layers": 2, **sections.pop("model", {})}
    return runs.train(name, training=training, model=shape, **sections)


def weights(run: RunFolder) -> dict[str, Tensor]:
    return load_tensors(run.checkpoint(run.steps()[-1]) / "model.safetensors")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["run", "model", "checkpoint"])
def test_starts_from_the_weights_and_the_tokenizer(runs: Runs, initial: RunFolder, kind: str) -> None:
    folder = {"run": initial.path, "model": initial.model, "checkpoint": initial.checkpoint(6)}[kind]
    run = tune(runs, folder, training=NEVER)
    assert same(weights(run), weights(initial))
    assert (run.path / "tokenizer.model").read_bytes() == (initial.path / "tokenizer.model").read_bytes()
    assert not same(weights(tune(runs, folder, "further")), weights(initial))


def test_it_is_told_in_the_lineage(runs: Runs, initial: RunFolder) -> None:
    run = tune(runs, initial.model)
    pipeline.average(run, "last", 1)
    expected = {
        "folder": str(initial.model),
        "weights_sha256": sha256_file(initial.model / "model.safetensors"),
        "tokenizer_sha256": Tokenizers.load(initial.path).sha256,
        "updates": 6,
    }
    assert read_lineage(run.model)["initialized_from"] == expected
    assert "initialized_from" not in read_lineage(initial.model)
    assert load_checkpoint(run.checkpoint(3))[2]["initialized_from"] == expected


@pytest.mark.parametrize(
    ("section", "values", "told"),
    [
        ("model", {"d_ff": 64, "norm": "pre"}, ["model.norm: 'pre', there 'post'", "model.d_ff: 64, there 32"]),
        ("model", {"encoder_layers": 1}, ["model.encoder_layers: 1, there 2"]),
        ("tokenizer", {"vocab_size": 110, "seed": 2}, ["tokenizer.vocab_size: 110, there 120", "tokenizer.seed: 2"]),
    ],
)
def test_what_does_not_fit_is_named(
    runs: Runs, initial: RunFolder, section: str, values: dict[str, Any], told: list[str]
) -> None:
    with pytest.raises(RecipeError) as caught:
        tune(runs, initial.path, **{section: values})
    assert all(line in caught.value.message for line in told)
    assert str(initial.model / "recipe.yaml") in str(caught.value.hint)


def test_how_it_learns_may_differ(runs: Runs, initial: RunFolder) -> None:
    shape = {"dropout": 0.3, "attention_dropout": 0.1, "layer_dropout": 0.1, "max_positions": 500}
    assert tune(runs, initial.path, model=shape).steps() == [3]


def test_a_folder_that_is_no_model_is_refused(runs: Runs, initial: RunFolder) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        tune(runs, runs.folder / "nowhere")
    with pytest.raises(RecipeError, match="lies in this run's own folder"):
        tune(runs, initial.model, "initial")


# Resuming


def test_a_stopped_run_goes_on_exactly(runs: Runs, initial: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"training": {"max_steps": 12, "freeze": ["encoder.1", "embeddings"], "ema_decay": 0.9}}
    whole = tune(runs, initial.model, "whole", **settings)
    with monkeypatch.context() as patch:
        before_step(patch, 5, signalled(signal.SIGINT))
        assert tune(runs, initial.model, **settings).steps()[-1] == 5
    assert_same(tune(runs, initial.model, **settings), whole, 12)


def test_the_initial_weights_may_move_but_not_change(runs: Runs, initial: RunFolder) -> None:
    tune(runs, initial.model)
    moved = runs.folder / "moved"
    shutil.copytree(initial.model, moved)
    assert tune(runs, moved, training={"max_steps": 5}).steps()[-1] == 5
    runs.train("initial", training={"max_steps": 8}, model={"encoder_layers": 2})
    pipeline.average(initial, "last", 1)
    with pytest.raises(RecipeError, match=r"began with the weights with SHA-256 .* now has the weights with SHA-256"):
        tune(runs, initial.model, training={"max_steps": 7})
    with pytest.raises(RecipeError, match="the tokenizer would have to be made again"):
        runs.train("tuned", training={"max_steps": 7}, model={"encoder_layers": 2})


# Schedules


SCHEDULES: dict[str, dict[str, Any]] = {
    "inverse_sqrt": {"rate": 0.01, "warmup_steps": 8},
    "linear": {"rate": 0.01, "warmup_steps": 2},
    "cosine": {"rate": 0.01, "warmup_steps": 7, "final_rate": 0.001},
    "constant": {"rate": 0.01, "warmup_steps": 20},
}


def rates(run: RunFolder) -> list[float]:
    return [row["learning_rate"] for row in events(run, "train")]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kind", ["model", "checkpoint"])
def test_a_schedule_is_continued(runs: Runs, initial: RunFolder, name: str, kind: str) -> None:
    """As the seventh update and those after it, of as many in all; without the setting it begins anew."""
    folder = {"model": initial.model, "checkpoint": initial.checkpoint(6)}[kind]
    schedule = {"name": name, **SCHEDULES[name]}
    training = {"log_every_steps": 1, "continue_schedule": True}
    run = tune(runs, folder, training=training, schedule=schedule)
    section = runs.recipe(schedule=schedule).schedule
    assert rates(run) == [learning_rate(section, step, 9, 16) for step in (7, 8, 9)]
    if kind == "model":
        anew = tune(runs, folder, "anew", training={**training, "continue_schedule": False}, schedule=schedule)
        assert rates(anew) == [learning_rate(section, step, 3, 16) for step in (1, 2, 3)]


def test_a_continued_schedule_can_be_continued(
    runs: Runs, initial: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Over two models, and over a stop in between: the rates are those of one run."""
    schedule = {"name": "inverse_sqrt", **SCHEDULES["inverse_sqrt"]}
    settings: dict[str, Any] = {"training": {"log_every_steps": 1, "continue_schedule": True}, "schedule": schedule}
    second = tune(runs, initial.model, **settings)
    pipeline.average(second, "last", 1)
    with monkeypatch.context() as patch:
        before_step(patch, 2, signalled(signal.SIGINT))
        tune(runs, second.model, "third", **settings)
    caplog.clear()
    with caplog.at_level("INFO"):
        third = tune(runs, second.model, "third", **settings)
    section = runs.recipe(schedule=schedule).schedule
    assert rates(third) == [learning_rate(section, step, 12, 16) for step in (10, 11, 12)]
    assert f"schedule: goes on after 9 updates of {second.model}, from " in caplog.text


def test_a_schedule_that_is_not_known_is_not_guessed_at(runs: Runs, initial: RunFolder) -> None:
    lineage = read_lineage(initial.model)
    del lineage["steps"]
    write_json(initial.model / "lineage.json", lineage)
    with pytest.raises(RecipeError, match="does not say after how many updates its schedule stopped"):
        tune(runs, initial.model, training={"continue_schedule": True})
    assert tune(runs, initial.model).steps() == [3]


# Freezing

PARTS: dict[str, tuple[str, ...]] = {
    "embeddings": ("source_embedding.", "target_embedding.", "source_positions.", "target_positions."),
    "output": ("output.",),
    "encoder": ("encoder.", "encoder_norm."),
    "decoder": ("decoder.", "decoder_norm."),
    "encoder.0": ("encoder.0.",),
    "decoder.1-2": ("decoder.1.", "decoder.2."),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_these_weights(part: str) -> None:
    model = build(decoder_layers=4, share_embeddings="none", norm="pre", positions="learned", max_positions=8)
    freeze(model, [part])
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith(PARTS[part])}
    assert len(trained(model)) == len(list(model.parameters())) - len(frozen)
    assert frozen


def test_a_shared_output_matrix_is_frozen_with_the_embeddings() -> None:
    model = build(share_embeddings="target")
    freeze(model, ["embeddings"])
    assert not model.output.weight.requires_grad


def test_nothing_left_to_train_is_an_error() -> None:
    with pytest.raises(RecipeError, match=r"embeddings, encoder, decoder\.0-1 leave no weight"):
        freeze(build(), ["embeddings", "encoder", "decoder.0-1"])


@pytest.mark.parametrize("extra", [{}, {"optimizer": {"name": "adamw", "weight_decay": 0.5}}])
@pytest.mark.parametrize("parts", [["embeddings"], ["encoder.1"], ["encoder", "decoder"]])
def test_frozen_weights_stay_bit_for_bit(
    runs: Runs, initial: RunFolder, parts: list[str], extra: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        run = tune(runs, initial.model, training={"freeze": parts}, **extra)
    before, after = weights(initial), weights(run)
    prefixes = tuple(prefix for part in parts for prefix in {**PARTS, "encoder.1": ("encoder.1.",)}[part])
    for name, weight in after.items():
        assert torch.equal(weight, before[name]) == name.startswith(prefixes), name
    state = load_checkpoint(run.checkpoint(3))[1]
    assert not [name for name in state if name.split(".", 2)[2].startswith(prefixes)]
    count = sum(weight.numel() for name, weight in after.items() if not name.startswith(prefixes))
    assert f"parameters, {count:,} of them trained" in caplog.text


@pytest.mark.parametrize(
    ("parts", "sections", "told"),
    [
        (
            ["encoder.2"],
            {},
            "encoder.2 does not exist; the layers of model.encoder_layers: 2 are encoder.0 to encoder.1",
        ),
        (["decoder.1-0"], {}, "decoder.1-0 does not exist"),
        (["output"], {}, "the output is the target embedding"),
        (["everything"], {}, "pattern"),
        (["encoder"], {"initialize_from": None}, "needs training.initialize_from"),
        ([], {"initialize_from": None, "continue_schedule": True}, "continue_schedule needs training.initialize_from"),
    ],
)
def test_a_part_that_is_none_is_refused(
    tiny_corpus: TinyCorpus, parts: list[str], sections: dict[str, Any], told: str
) -> None:
    training = {"initialize_from": "x", **sections, "freeze": parts}
    with pytest.raises(ValueError, match=told):
        tiny_corpus.recipe(training=training, model={"encoder_layers": 2, "decoder_layers": 2})


# New symbols


def test_symbols_come_after_the_pieces_whose_ids_stay(tiny_tokenizers: Tokenizers) -> None:
    before = tiny_tokenizers.source
    after = extended(before, ["<talk>", "<news>", "【标】"])
    assert (after.size, after.symbols) == (before.size + 2, ("<news>", "<talk>", "【标】"))
    assert after.symbol_id("<talk>") == before.size
    text = "the red baker sees the river today."
    assert after.encode(text) == before.encode(text)
    assert after.encode(f"<talk> {text}") == [before.size, *before.encode(text)]
    assert after.decode(after.encode(f"<talk> {text} 【标】")) == f"<talk> {text} 【标】"
    assert after.pieces(range(before.size)) == before.pieces(range(before.size))
    assert extended(after, ["<talk>"]) is after
    again = extended(after, ["<more>"])
    assert again.symbol_id("<more>") == after.size
    assert Tokenizers(again, again).sha256 != tiny_tokenizers.sha256


@pytest.mark.parametrize(("symbol", "told"), [("a", "ordinary piece"), ("a b", "cannot be a symbol")])
def test_what_cannot_be_a_symbol(tiny_tokenizers: Tokenizers, symbol: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        extended(tiny_tokenizers.source, [symbol])


@pytest.mark.parametrize("parts", [["embeddings"], ["encoder"], []])
def test_symbols_that_cannot_be_learnt_are_warned_of(
    runs: Runs, initial: RunFolder, parts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = {"vocab_size": 120, "user_defined_symbols": ["<x>", "<y>"]}
    run = tune(runs, initial.model, training={"freeze": parts}, tokenizer=tokenizer)
    warned = "the rows of new symbols (<x>, <y>) stay as they begin" in caplog.text
    assert warned == (parts == ["embeddings"])
    assert run.steps() == [3]
    caplog.clear()
    tune(runs, initial.model, "known", training={"freeze": ["embeddings"]})
    assert "new symbols" not in caplog.text


@pytest.mark.parametrize(("share", "output_bias"), [("all", True), ("none", False)])
def test_embeddings_grow_by_average_rows(runs: Runs, share: str, output_bias: bool) -> None:
    shape = {"share_embeddings": share, "output_bias": output_bias}
    initial = runs.train("initial", training={"max_steps": 2}, model=shape)
    pipeline.average(initial, "last", 1)
    data = runs.corpus.values()["data"]
    data = {**data, "train": [{**data["train"][0], "tags": ["<talk>"]}]}
    tokenizer = {"vocab_size": 120, "user_defined_symbols": ["<x>"]}
    sections: dict[str, Any] = {"data": data, "tokenizer": tokenizer, "model": {**shape, "encoder_layers": 1}}
    run = tune(runs, initial.model, training=NEVER, **sections)
    before, after = weights(initial), weights(run)
    grown = {name for name in after if after[name].shape != before[name].shape}
    matrices = {"target_embedding.weight"}
    if share == "none":
        matrices |= {"source_embedding.weight", "output.weight"}
    if output_bias:
        assert torch.equal(
            after["output.bias"], torch.cat((before["output.bias"], before["output.bias"].median().expand(2)))
        )
        matrices |= {"output.bias"}
    assert grown == matrices
    for name in grown - {"output.bias"}:
        old, new = before[name], after[name][120:]
        assert torch.equal(after[name][:120], old)
        assert len(new) == 2
        assert not torch.equal(new[0], new[1])
        assert bool(((new - old.mean(0)).abs() < old.std(0)).all())
    tuned = tune(runs, initial.model, "further", **sections)
    name = "source_embedding.weight" if share == "none" else "target_embedding.weight"
    assert not torch.equal(weights(tuned)[name][121], after[name][121]), "the tag is in the corpus, and is learnt"
    assert same(weights(tune(runs, initial.model, "again", training=NEVER, **sections)), after), "seeded"
    pipeline.average(tuned, "last", 1)
    third = tune(runs, tuned.model, "third", training=NEVER, **sections)
    assert same(weights(third), weights(tuned)), "a model with more symbols can be tuned again"
