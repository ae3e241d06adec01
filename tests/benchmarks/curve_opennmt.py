"""BLEU against minutes of training: OpenNMT-py at the published narrow setting, on Multi30k.

    python tests/benchmarks/curve_opennmt.py --data DIR --environments DIR2 --updates 1500 --every 250

DIR holds Multi30k's train, val and test_2016_flickr, .en.gz and .de.gz; DIR2 is as for train_peers.py. Prints a line a
checkpoint: updates, minutes of training as the peer's own log tells them, and BLEU (13a, cased) of greedy search on
val; at the last one that of beam 5 on the test set as well. Our side of the curve is in the run folder's metrics.jsonl.

The setting is that of Wu et al. 2021 for Multi30k: 4 + 4 layers of width 128, inner width 256, 4 heads, post-norm,
dropout 0.3, batches of 4,096 tokens, Adam (0.9, 0.98), the inverse square root of the step after 2,000 updates of
warm-up up to 5e-3, label smoothing 0.1. The pairs are cut by the joint vocabulary of train_peers.py. The peer's memory
allocator is tuned from outside, as mtkit tunes its own: no mapped chunks, nothing given back.
"""

import argparse
import os
import re
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import yaml
from train_peers import HERE, environment, opennmt_config, prepare, run

from mtkit.evaluate import score
from mtkit.files import read_lines
from mtkit.text.tokenizer import Tokenizers

ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_TOP_PAD_": str(64 * 2**20)}
UNPICKLING = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}  # the peer's checkpoints, made a moment ago, hold its options
PEAK_RATE, WARMUP, WIDTH = 5e-3, 2000, 128


def settings(work: Path, updates: int, every: int) -> dict[str, object]:
    """OpenNMT-py's configuration."""
    config = opennmt_config(work, "tiny", every, updates)
    return {
        **config,
        # rate = factor * width^-0.5 * min(step^-0.5, step * warmup^-1.5), which peaks at the end of the warm-up
        "learning_rate": PEAK_RATE * WIDTH**0.5 * WARMUP**0.5,
        "decay_method": "noam",
        "warmup_steps": WARMUP,
        "max_grad_norm": 0.0,
        "dropout": [0.3],
        "save_checkpoint_steps": every,
        "keep_checkpoint": -1,
    }


def minutes_in_log(text: str) -> dict[int, float]:
    """Minutes of training at each step that the log tells of: `Step 250/1500; ...; 17 sec;`."""
    found = re.finditer(r"Step\s+(\d+)/\s*\d+;.*?;\s*(\d+) sec;", text)
    return {int(match[1]): int(match[2]) / 60 for match in found}


def bleu(options: argparse.Namespace, work: Path, model: Path, test: str, beam: int) -> float:
    """BLEU of a checkpoint's translations."""
    tokenizers = Tokenizers.load(work / "run")
    encoded = tokenizers.source.encode_batch(list(read_lines(options.data / f"{test}.en.gz")))
    source, output = work / f"{test}.pieces", work / f"{test}.out"
    rows = (" ".join(tokenizers.source.pieces(ids)) for ids in encoded)
    source.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8", newline="\n")
    python = str(environment(options.environments, "opennmt"))
    command = [python, str(HERE / "peers" / "command.py"), "onmt.bin.translate", "-model", str(model), "-gpu", "-1"]
    command += ["-src", str(source), "-output", str(output), "-beam_size", str(beam), "-batch_size", "64"]
    run(command, options.threads, work)
    pieces = output.read_text(encoding="utf-8").split("\n")[:-1]
    text = [row.replace(" ", "").replace("\N{LOWER ONE EIGHTH BLOCK}", " ").strip() for row in pieces]
    return score(text, [list(read_lines(options.data / f"{test}.de.gz"))], target_language="de").metrics["bleu"].score


def main() -> int:
    """Train, translate, score; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of Multi30k's files")
    parser.add_argument("--environments", type=Path, required=True, help="folder of the peers' virtual environments")
    parser.add_argument("--updates", type=int, default=1500, help="updates of training (default 1500)")
    parser.add_argument("--every", type=int, default=250, help="updates between two checkpoints (default 250)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument("--work", type=Path, help="keep all files in this folder (default: a temporary one)")
    options = parser.parse_args()
    python = str(environment(options.environments, "opennmt"))
    os.environ.update(ALLOCATOR | UNPICKLING)
    with ExitStack() as stack:
        work = Path(options.work or stack.enter_context(tempfile.TemporaryDirectory())).resolve()
        prepare(options.data, work, options.threads)
        path = work / "opennmt-curve.yaml"
        path.write_text(yaml.safe_dump(settings(work, options.updates, options.every)), encoding="utf-8")
        (work / "opennmt").mkdir(exist_ok=True)
        train = [python, str(HERE / "peers" / "command.py"), "onmt.bin.train", "-config", str(path)]
        done = run(train, options.threads, work)
        for step, minutes in minutes_in_log(done.stdout + done.stderr).items():
            model = work / "opennmt" / f"model_step_{step}.pt"
            line = f"{step} updates, {minutes:.1f} minutes: val {bleu(options, work, model, 'val', 1):.2f}"
            if step == options.updates:
                line += f", test_2016_flickr, beam 5, {bleu(options, work, model, 'test_2016_flickr', 5):.2f}"
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
