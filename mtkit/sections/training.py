"""Recipe sections about learning: optimizer, schedule, training and averaging."""

from typing import Annotated, Literal

from pydantic import Field

from mtkit.sections.base import Section

FROZEN_PART = r"^(embeddings|output|(encoder|decoder)(\.\d{1,3}(-\d{1,3})?)?)$"


class Optimizer(Section):
    """Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019), or Muon (Jordan et al. 2024) beside AdamW."""

    name: Literal["adam", "adamw", "muon"] = Field(
        "adam",
        description="adamw decouples the weight decay; muon: Muon for the matrices inside the layers, scaled so that "
        "Adam's rates suit it (Liu et al. 2025), AdamW for all else",
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the mean of the gradient")
    beta2: float = Field(0.98, ge=0, lt=1, description="Decay of the mean of its square (0.98: Vaswani et al. 2017)")
    epsilon: float = Field(1e-9, gt=0, le=1, description="Added to the denominator (1e-9: Vaswani et al. 2017)")
    weight_decay: float = Field(0.0, ge=0, le=1, description="L2 term (adam) or decoupled decay a step")
    clip_norm: float | None = Field(
        1.0,
        gt=0,
        le=1e6,
        description="Largest global norm of the gradient of the mean token loss; null: no clipping",
    )


class InverseSquareRoot(Section):
    """rate * min(step / warmup, sqrt(warmup / step)): Vaswani et al. 2017, section 5.3, stated by its peak."""

    name: Literal["inverse_sqrt"] = Field("inverse_sqrt", description="Linear warm-up, then 1 / sqrt(step)")
    rate: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Peak learning rate; null: the paper's (d_model * warmup_steps) ** -0.5",
    )
    warmup_steps: int = Field(4000, ge=1, le=10_000_000, description="Updates until the peak")


class Cosine(Section):
    """Linear warm-up, then half a cosine down to `final_rate` at `training.max_steps`.

    A run that goes on with another `training.max_steps` follows the new curve from there, and says so.
    """

    name: Literal["cosine"] = Field(description="Half a cosine")
    rate: float = Field(gt=0, le=1e6, description="Peak learning rate")
    warmup_steps: int = Field(500, ge=0, le=10_000_000, description="Updates until the peak")
    final_rate: float = Field(0.0, ge=0, le=1e6, description="Learning rate at the end")


class Linear(Section):
    """Linear warm-up, then a straight line down to `final_rate` at `training.max_steps`.

    A run that goes on with another `training.max_steps` follows the new line from there, and says so.
    """

    name: Literal["linear"] = Field(description="A straight line")
    rate: float = Field(gt=0, le=1e6, description="Peak learning rate")
    warmup_steps: int = Field(500, ge=0, le=10_000_000, description="Updates until the peak")
    final_rate: float = Field(0.0, ge=0, le=1e6, description="Learning rate at the end")


class Constant(Section):
    """Linear warm-up, then the same rate for ever."""

    name: Literal["constant"] = Field(description="No decay")
    rate: float = Field(gt=0, le=1e6, description="Learning rate")
    warmup_steps: int = Field(0, ge=0, le=10_000_000, description="Updates until the full rate")


Schedule = Annotated[InverseSquareRoot | Cosine | Linear | Constant, Field(discriminator="name")]


class Training(Section):
    """How long, how exact, how often."""

    max_steps: int = Field(100_000, ge=0, le=1_000_000_000, description="Updates in all; 0 only saves the start")
    seed: int = Field(1, ge=0, lt=2**31, description="Fixes initial weights, data order, dropout")
    max_epochs: int | None = Field(None, ge=1, le=1_000_000, description="Most passes over the data; null: any")
    accumulate: int = Field(1, ge=1, le=100_000, description="Batches whose gradients are added up for one update")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="Mass spread over the vocabulary (Szegedy et al. 2016)")
    r_drop: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="Weight of R-Drop (Liang et al. 2021): each batch goes through the model twice, with other "
        "dropout, and both should predict the same; 0: off, 5 in the paper",
    )
    word_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Rate at which tokens of both sides are read as unknown (Bowman et al. 2016; what is to be "
        "predicted stays)",
    )
    initialize_from: str | None = Field(
        None,
        min_length=1,
        description="Model, run or checkpoint folder to start from, weights and tokenizer; null: random weights",
    )
    continue_schedule: bool = Field(
        False,
        description="With initialize_from: the learning rate goes on where that model stopped, its updates counting as "
        "the first ones of the schedule; max_steps are this run's alone",
    )
    freeze: tuple[Annotated[str, Field(pattern=FROZEN_PART)], ...] = Field(
        (),
        description="Parts that stay as initialize_from has them: embeddings, output, encoder, decoder, or layers "
        "counted from 0, such as encoder.0 or decoder.0-3",
    )
    precision: Literal["fp32", "bf16", "fp16", "auto"] = Field(
        "fp32",
        description="bf16, fp16: mixed precision, weights in fp32; auto: bf16 where the processor has it",
    )
    packing: bool = Field(False, description="Leave padding out; the result is the same but for rounding")
    gradient_checkpointing: bool = Field(
        False,
        description="Keep each layer's input alone for the backward pass and compute the rest again: less memory, "
        "about a third more time, the same result",
    )
    compile: bool = Field(False, description="Compile the model with torch.compile; needs a C++ compiler on a CPU")
    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto, cpu, cuda, cuda:N or mps")
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description="With several processes: ddp, each holds the whole model and its optimizer; fsdp, each holds a "
        "share of both (Zhao et al. 2023), for models that do not fit otherwise",
    )
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; null: as many as cores")
    ema_decay: float | None = Field(
        None, gt=0, lt=1, description="Keep a moving average of the weights, validate and save it; null: none"
    )
    validate_every_steps: int = Field(1000, ge=1, le=10_000_000, description="Updates between validations")
    validate_sentences: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Translate only so many validation sentences for BLEU; null: all",
    )
    validate_beam_size: int = Field(1, ge=1, le=64, description="Beam size of validation; 1 is greedy")
    samples: int = Field(3, ge=0, le=100, description="Translations shown at each validation")
    log_every_steps: int = Field(50, ge=1, le=1_000_000, description="Updates between lines of the log")
    tensorboard: bool = Field(
        False, description="Write the log for TensorBoard too, into RUN/tensorboard; needs the extra tensorboard"
    )
    save_every_steps: int | None = Field(
        None, ge=1, le=10_000_000, description="Updates between checkpoints; null: at each validation"
    )
    checksum_every_steps: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="With several processes that each hold the whole model: updates between comparisons of their "
        "weights; null: before each checkpoint only",
    )
    keep_best: int = Field(1, ge=0, le=1000, description="Checkpoints kept for their validation score")
    keep_last: int = Field(3, ge=1, le=1000, description="Newest checkpoints kept")
    best_metric: Literal["bleu", "chrf", "loss"] = Field("bleu", description="What best means")
    patience: int | None = Field(
        None, ge=1, le=1_000_000, description="Stop after so many validations without a new best; null: never"
    )
    max_bad_steps: int = Field(
        10,
        ge=1,
        le=100_000,
        description="Stop after so many updates in a row whose loss or gradient is not finite, or whose loss a token "
        "exceeds 4 times the logarithm of the vocabulary size",
    )


class Average(Section):
    """Which checkpoints make RUN/model."""

    select: Literal["best", "last"] = Field("best", description="By validation score, or the newest")
    checkpoints: int = Field(1, ge=1, le=1000, description="How many are averaged; 1 takes one as it is")


def frozen_layers(part: str) -> tuple[int, int]:
    """First and last layer of a part of `training.freeze` such as encoder.3 or decoder.0-2.

    >>> frozen_layers("decoder.0-2")
    (0, 2)
    """
    first, _, last = part.partition(".")[2].partition("-")
    return int(first), int(last or first)
