"""Errors that a user can act on: what is wrong, where, and what to do next.

`MtkitError` is for the user's mistakes and the world's faults; the command line prints it without a traceback and
exits with its code. Our own mistakes are `assert`s and show one.
"""


class MtkitError(Exception):
    """A problem that the user can mend: `message` names place and value, `hint` the next step."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  hint: {self.hint}"


class UsageError(MtkitError):
    """Arguments that do not fit together; exit code 2."""

    exit_code = 2


class RecipeError(MtkitError):
    """A recipe that cannot be used as it stands; exit code 2."""

    exit_code = 2


class DataError(MtkitError):
    """A file of text that is missing, misaligned or not what it claims to be; exit code 1."""


class CheckError(MtkitError):
    """What `mtkit check` found to stand in the way of a run; exit code 2."""

    exit_code = 2


class ModelError(MtkitError):
    """A model, tokenizer, shard or checkpoint that is missing, damaged or does not belong here; exit code 1."""


class TrainingError(MtkitError):
    """Training that cannot go on, for example because the loss is no longer a number; exit code 1."""


class ToldError(MtkitError):
    """The end of one process of a job because of a failure that another one tells the user; ends without a word."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("stopped by a failure that rank 0 tells")
        self.exit_code = exit_code
