"""Training speed beside other toolkits, at equal settings and in turns.

    python tests/benchmarks/train_peers.py --data DIR --environments DIR2 --rounds 3

DIR holds Multi30k's train.en.gz and train.de.gz, as `mtkit fetch recipes/multi30k-en-de.yaml` brings them; DIR2 will
hold one virtual environment a peer, made when it is missing: the torch of constraints.txt first, then the peer's
packages without their dependencies.

All train the same pairs, cut into pieces by one joint vocabulary of 6,000: tiny is 4 + 4 layers of width 128, inner
width 256, 4 heads; base 6 + 6 layers of width 512, 2048, 8 heads. Batches of 4,096 tokens, fp32 (and bf16 for mtkit),
one matrix for all embeddings where the peer can, dropout 0.1, label smoothing 0.1, Adam. Counted are real target
tokens, EOS included, a second, over the updates after the warm-up, everything that training does included. OpenNMT-py
and Eole run their own training commands, whose log is read; Hugging Face's model runs in the loop of
peers/huggingface_marian.py. In each round every peer has its turn, so that a change in the machine's speed hits all;
ratios are taken within a round.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mtkit.recipe import Recipe
from mtkit.stages import ensure_shards, ensure_tokenizer
from mtkit.training.updates import open_pairs

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parents[1] / "constraints.txt"
SIZES = {
    "tiny": {"layers": 4, "d_model": 128, "d_ff": 256, "heads": 4},
    "base": {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8},
}
UPDATES = {"tiny": (40, 10), "base": (6, 2)}
"""Updates that count and updates before them; the logs of the peers must divide both into equal stretches."""

VOCABULARY, MAX_TOKENS = 6000, 4096
LIGHT = {
    "huggingface": ["transformers", "huggingface_hub", "tokenizers", "regex", "requests", "safetensors", "packaging",
                    "psutil", "typer", "click", "httpx2", "httpcore2", "anyio", "h11", "idna", "certifi", "truststore",
                    "hf_xet"],
    "opennmt": ["OpenNMT-py==3.5.1", "pyonmttok", "ctranslate2", "configargparse", "rapidfuzz", "sacrebleu",
                "pyahocorasick", "six", "tensorboard", "portalocker", "tabulate", "regex", "colorama", "lxml",
                "protobuf", "absl-py", "grpcio", "werkzeug", "markdown"],
    "eole": ["eole", "pyonmttok", "ctranslate2", "configargparse", "rapidfuzz", "sacrebleu", "pyahocorasick", "six",
             "rich", "pydantic", "pydantic_core", "annotated-types", "typing-inspection", "torch-optimi", "safetensors",
             "tensorboard", "portalocker", "tabulate", "regex", "colorama", "lxml", "protobuf", "absl-py", "grpcio",
             "werkzeug", "markdown", "markdown-it-py", "mdurl", "pygments", "tokenizers"],
}  # fmt: skip
OURS = {"mtkit": "fp32", "mtkit-bf16": "bf16"}


def environment(folder: Path, peer: str) -> Path:
    """The Python of a peer's environment, which is made when it is missing."""
    python = folder / peer / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / peer)], check=True)
        install = [str(python), "-m", "pip", "install", "-q"]
        first = ["-c", str(CONSTRAINTS), "torch", "numpy", "pyyaml", "sentencepiece", "tqdm"]
        subprocess.run([*install, *first], check=True)
        subprocess.run([*install, "--no-deps", *LIGHT[peer]], check=True)
    return python


def recipe_of(data: Path, work: Path, size: str, precision: str, threads: int) -> Recipe:
    """Our recipe of the comparison."""
    shape = SIZES[size]
    model = {
        "d_model": shape["d_model"],
        "d_ff": shape["d_ff"],
        "heads": shape["heads"],
        "norm": "post",
        "dropout": 0.1,
    }
    return Recipe.model_validate(
        {
            "run_dir": str(work / "run"),
            "languages": {"source": "en", "target": "de"},
            "data": {
                "root": str(data.resolve()),
                "train": [{"name": "train", "source": "train.en.gz", "target": "train.de.gz"}],
            },
            "tokenizer": {"vocab_size": VOCABULARY},
            "batching": {"max_tokens": MAX_TOKENS},
            "model": {**model, "encoder_layers": shape["layers"], "decoder_layers": shape["layers"]},
            "schedule": {"name": "constant", "rate": 3e-4},
            "training": {
                "precision": precision,
                "threads": threads,
                "label_smoothing": 0.1,
                "device": "cpu",
                "packing": size == "base",  # see recipes/README.md: it pays for wide models
            },
        }
    )


def prepare(data: Path, work: Path, threads: int) -> None:
    """Tokenizer, shards, and the same pairs as pieces (for the commands) and as ids (for the loop)."""
    work.mkdir(parents=True, exist_ok=True)
    recipe = recipe_of(data, work, "tiny", "fp32", threads)
    tokenizers = ensure_tokenizer(recipe)
    ensure_shards(recipe, tokenizers)
    pairs = open_pairs(work / "run" / "shards" / "train", recipe.data.train)
    held: dict[str, Any] = {}
    for side in ("source", "target"):
        ids = np.concatenate([getattr(shard, f"{side}_ids") for shard in pairs.shards])
        ends = np.cumsum(np.concatenate([getattr(shard, f"{side}_lengths") for shard in pairs.shards]))
        held |= {f"{side}_ids": ids, f"{side}_ends": ends}
        names = np.array(tokenizers.source.pieces(range(VOCABULARY)), dtype=object)
        rows = np.split(names[ids], ends[:-1])
        (work / f"{side}.pieces").write_text(
            "".join(" ".join(row) + "\n" for row in rows), encoding="utf-8", newline="\n"
        )
    np.savez(work / "pairs.npz", **held)
    listed = "".join(f"{piece}\t1\n" for piece in tokenizers.source.pieces(range(4, VOCABULARY)))
    (work / "vocabulary").write_text(listed, encoding="utf-8", newline="\n")


def run(command: list[str], threads: int, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a peer with so many threads; ends this program with the peer's last words when it fails."""
    there = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "0",
    }
    there.pop("PYTHONPATH", None)
    done = subprocess.run(command, env=there, cwd=folder, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done


def ours(options: argparse.Namespace, work: Path, size: str, precision: str) -> dict[str, float]:
    """`mtkit bench train` on the recipe."""
    path = work / f"{size}-{precision}.yaml"
    path.write_text(recipe_of(options.data, work, size, precision, options.threads).dump(), encoding="utf-8")
    count, warmup = UPDATES[size]
    command = [sys.executable, "-m", "mtkit", "bench", "train", str(path), "--json"]
    done = run([*command, "--updates", str(count), "--warmup", str(warmup)], options.threads, HERE.parents[1])
    figures = json.loads(done.stdout)
    shares = {name: figures[name] for name in ("sustained_share", "peak_share")}
    return {"speed": figures["target_tokens_per_second"], **shares}


def huggingface(options: argparse.Namespace, work: Path, size: str) -> dict[str, float]:
    """Hugging Face's MarianMT model in a plain loop."""
    count, warmup = UPDATES[size]
    settings = {**SIZES[size], "updates": count, "warmup": warmup, "threads": options.threads}
    settings |= {"vocabulary": VOCABULARY, "max_tokens": MAX_TOKENS}
    script = [str(HERE / "peers" / "huggingface_marian.py"), str(work / "pairs.npz"), json.dumps(settings)]
    done = run([str(environment(options.environments, "huggingface")), *script], options.threads, work)
    figures = json.loads(done.stdout.strip().split("\n")[-1])
    return {"speed": figures["target_tokens"] / figures["seconds"]}


def opennmt_config(work: Path, size: str, every: int, steps: int) -> dict[str, Any]:
    """OpenNMT-py's settings."""
    shape = SIZES[size]
    return {
        "save_model": str(work / "opennmt" / "model"),
        "src_vocab": str(work / "vocabulary"), "tgt_vocab": str(work / "vocabulary"), "share_vocab": True,
        "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY, "overwrite": True,
        "data": {"train": {"path_src": str(work / "source.pieces"), "path_tgt": str(work / "target.pieces"),
                           "transforms": [], "weight": 1}},
        "bucket_size": 29000, "num_workers": 0, "seed": 1,
        "batch_type": "tokens", "batch_size": MAX_TOKENS, "batch_size_multiple": 1, "normalization": "tokens",
        "accum_count": [1], "optim": "adam", "adam_beta2": 0.98, "learning_rate": 3e-4, "max_grad_norm": 1.0,
        "label_smoothing": 0.1, "param_init": 0, "param_init_glorot": True, "model_dtype": "fp32",
        "encoder_type": "transformer", "decoder_type": "transformer", "position_encoding": True,
        "enc_layers": shape["layers"], "dec_layers": shape["layers"], "heads": shape["heads"],
        "hidden_size": shape["d_model"], "word_vec_size": shape["d_model"], "transformer_ff": shape["d_ff"],
        "dropout": [0.1], "attention_dropout": [0.0], "share_embeddings": True, "share_decoder_embeddings": True,
        "train_steps": steps, "report_every": every, "valid_steps": 10**6, "save_checkpoint_steps": 10**6,
    }  # fmt: skip


def eole_config(work: Path, size: str, every: int, steps: int) -> dict[str, Any]:
    """Eole's settings."""
    shape = SIZES[size]
    return {
        "seed": 1, "overwrite": True, "report_every": every, "n_sample": 0,
        "src_vocab": str(work / "vocabulary"), "tgt_vocab": str(work / "vocabulary"), "share_vocab": True,
        "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY,
        "data": {"train": {"path_src": str(work / "source.pieces"), "path_tgt": str(work / "target.pieces"),
                           "transforms": [], "weight": 1}},
        "training": {
            "model_path": str(work / "eole"), "bucket_size": 29000, "num_workers": 0,
            "batch_type": "tokens", "batch_size": MAX_TOKENS, "batch_size_multiple": 1, "normalization": "tokens",
            "accum_count": [1], "optim": "adam", "adam_beta2": 0.98, "learning_rate": 3e-4, "max_grad_norm": 1.0,
            "label_smoothing": 0.1, "param_init_method": "xavier_uniform", "compute_dtype": "fp32",
            "dropout": [0.1], "attention_dropout": [0.0], "world_size": 1, "gpu_ranks": [],
            "train_steps": steps, "valid_steps": 10**6, "save_checkpoint_steps": 10**6,
        },
        "model": {
            "architecture": "transformer", "layers": shape["layers"], "hidden_size": shape["d_model"],
            "heads": shape["heads"], "transformer_ff": shape["d_ff"],
            "share_embeddings": True, "share_decoder_embeddings": True,
            "embeddings": {"word_vec_size": shape["d_model"], "position_encoding_type": "SinusoidalInterleaved"},
        },
    }  # fmt: skip


def command_of(options: argparse.Namespace, work: Path, size: str, peer: str) -> dict[str, float]:
    """OpenNMT-py or Eole by its own training command; the speed is read from its log."""
    count, warmup = UPDATES[size]
    every = int(np.gcd(count, warmup))
    make, start = {
        "opennmt": (opennmt_config, ["onmt.bin.train", "-config"]),
        "eole": (eole_config, ["eole.bin.main", "train", "-config"]),
    }[peer]
    path = work / f"{peer}-{size}.yaml"
    path.write_text(yaml.safe_dump(make(work, size, every, warmup + count)), encoding="utf-8")
    (work / peer).mkdir(exist_ok=True)
    python = str(environment(options.environments, peer))
    done = run([python, str(HERE / "peers" / "command.py"), *start, str(path)], options.threads, work)
    return {"speed": speed_in_log(done.stdout + done.stderr, every, count, warmup)}


def speed_in_log(text: str, every: int, count: int, warmup: int) -> float:
    """Target tokens a second of the updates that count, from lines that tell tokens a batch and tokens a second.

    Step 40/80; ...; bsz: 3921/3650/130; 4512/4201 tok/s; 17 sec;
    """
    line = re.compile(r"Step\s+(\d+)/\s*\d+;.*?bsz:\s*(\d+)/\s*(\d+)/.*?(\d+)/\s*(\d+) tok/s")
    rows = [tuple(map(int, match.groups())) for match in line.finditer(text)]
    rows = [row for row in rows if warmup < row[0] <= warmup + count]
    if len(rows) != count // every:
        sys.exit(f"the log tells of {len(rows)} stretches of {every} updates, not {count // every}:\n{text[-3000:]}")
    return sum(row[2] for row in rows) / sum(row[2] / row[4] for row in rows)


def measure(options: argparse.Namespace, work: Path, size: str, peer: str) -> dict[str, float]:
    """One turn of one peer."""
    if peer in OURS:
        return ours(options, work, size, OURS[peer])
    return huggingface(options, work, size) if peer == "huggingface" else command_of(options, work, size, peer)


def told(values: list[float], digits: int) -> str:
    """Least, median and most."""
    return " / ".join(f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))


def main() -> int:
    """Compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of train.en.gz and train.de.gz")
    parser.add_argument("--environments", type=Path, required=True, help="folder of the peers' virtual environments")
    parser.add_argument("--peers", nargs="+", default=["mtkit", "mtkit-bf16", *LIGHT], choices=[*OURS, *LIGHT])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer at each size (default 3)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument("--work", type=Path, help="keep what is prepared in this folder (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="write all figures into this file")
    options = parser.parse_args()
    for peer in set(options.peers) - set(OURS):
        environment(options.environments, peer)
    figures: dict[str, dict[str, list[dict[str, float]]]] = {size: {} for size in options.sizes}
    with ExitStack() as stack:
        name = options.work or stack.enter_context(tempfile.TemporaryDirectory())
        prepare(options.data, Path(name).resolve(), options.threads)
        for number in range(options.rounds):
            for size in options.sizes:
                for peer in options.peers:
                    row = measure(options, Path(name).resolve(), size, peer)
                    figures[size].setdefault(peer, []).append(row)
                    print(f"round {number + 1} {size} {peer}: {row}", file=sys.stderr, flush=True)
                    if options.json:
                        options.json.write_text(json.dumps(figures, indent=2))
    for size, peers in figures.items():
        print(f"{size}: target tokens/s, least / median / most of {options.rounds} rounds; ratio to mtkit in fp32")
        for peer, rows in peers.items():
            speeds = [row["speed"] for row in rows]
            line = f"  {peer:<12} {told(speeds, 0)}"
            if peer != "mtkit" and "mtkit" in peers:
                ratios = [mine["speed"] / row["speed"] for mine, row in zip(peers["mtkit"], rows, strict=True)]
                line += f"   {told(ratios, 2)}"
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
