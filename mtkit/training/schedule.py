"""The learning rate of each update."""

import math

from mtkit.initial import InitialModel
from mtkit.recipe import Recipe
from mtkit.sections.training import Constant, Cosine, InverseSquareRoot, Linear


def rate_of(recipe: Recipe, initial: InitialModel | None, step: int) -> float:
    """Rate of a run's update `step`, counted from 1.

    With `training.continue_schedule` the schedule is that of one run of the initial model's updates and these.
    """
    before = initial.updates if initial is not None and recipe.training.continue_schedule else 0
    return learning_rate(recipe.schedule, before + step, before + recipe.training.max_steps, recipe.model.d_model)


def learning_rate(
    schedule: InverseSquareRoot | Cosine | Linear | Constant, step: int, max_steps: int, d_model: int
) -> float:
    """Rate of update `step`, counted from 1.

    inverse_sqrt: peak * min(step / warmup, sqrt(warmup / step)), which with peak = (d_model * warmup)^-0.5 is
    equation 3 of Vaswani et al. 2017. cosine and linear fall from the peak at the end of warm-up to `final_rate` at
    `max_steps` (Loshchilov and Hutter 2017, equation 5, one period).
    """
    warmup = schedule.warmup_steps
    if isinstance(schedule, InverseSquareRoot):
        peak = schedule.rate if schedule.rate is not None else (d_model * warmup) ** -0.5
        return peak * min(step / warmup, math.sqrt(warmup / step))
    if step < warmup:
        return schedule.rate * step / warmup
    if isinstance(schedule, Constant):
        return schedule.rate
    done = min(1.0, (step - warmup) / max(1, max_steps - warmup))
    share = (1 + math.cos(math.pi * done)) / 2 if isinstance(schedule, Cosine) else 1 - done
    return schedule.final_rate + (schedule.rate - schedule.final_rate) * share
