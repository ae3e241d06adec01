"""What all recipe sections share: frozen, strict about unknown keys, and every field described."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the recipe. Unknown keys are errors; values cannot change after loading."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
