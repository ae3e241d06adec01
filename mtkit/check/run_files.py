"""Whether what a run folder holds belongs together: tokenizer, shards, checkpoints."""

from mtkit.check.findings import Finding, error, warning
from mtkit.data.report import REPORT_FILE, Report
from mtkit.errors import MtkitError
from mtkit.folders import STATE_FILE, checkpoint_state
from mtkit.recipe import Recipe
from mtkit.stages import run_folder
from mtkit.text.tokenizer import Tokenizers


def check_run(recipe: Recipe) -> list[Finding]:
    """Findings about the recipe's run folder; none where it is not there. Raises RecipeError for an unusable one."""
    run = run_folder(recipe)
    try:
        tokenizers = Tokenizers.load(run.path)
    except MtkitError:
        return []  # training makes it, or makes it again
    found = []
    files = " and ".join(str(path) for path, _ in tokenizers.files(run.path))
    steps = run.steps()
    if steps:
        folder = run.checkpoint(steps[-1])
        try:
            theirs = checkpoint_state(folder)["tokenizer_sha256"]
        except MtkitError as damage:
            found.append(warning("checkpoint", "run_dir", damage.message, damage.hint or "training sets it aside"))
        else:
            if theirs != tokenizers.sha256:
                message = f"{files} is not the tokenizer that {folder / STATE_FILE} was trained with"
                remedy = "put the old tokenizer back; or start anew: mtkit train RECIPE --fresh"
                found.append(error("tokenizer", "run_dir", message, remedy))
    report = run.shards / REPORT_FILE
    if report.is_file():
        try:
            theirs = Report.load(run.shards).tokenizer_sha256
        except MtkitError as damage:
            found.append(warning("shards", "run_dir", damage.message, damage.hint or "training makes them again"))
        else:
            if theirs != tokenizers.sha256:
                message = f"{files} is not the tokenizer that the shards of {report} were made with"
                remedy = "put the old tokenizer back; or make the shards again: mtkit binarize RECIPE"
                found.append(warning("tokenizer", "run_dir", message, remedy))
    return found
