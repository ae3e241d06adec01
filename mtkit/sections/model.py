"""The recipe section about the model."""

from typing import Literal

from pydantic import Field, model_validator

from mtkit.sections.base import Section


class Model(Section):
    """The encoder-decoder Transformer; the defaults are the base model of Vaswani et al. 2017, table 3."""

    d_model: int = Field(512, ge=4, le=16384, description="Width of embeddings and layers")
    heads: int = Field(8, ge=1, le=256, description="Attention heads; must divide d_model")
    d_ff: int = Field(2048, ge=4, le=65536, description="Inner width of the feed-forward block")
    encoder_layers: int = Field(6, ge=1, le=128, description="Layers of the encoder")
    decoder_layers: int = Field(6, ge=1, le=128, description="Layers of the decoder")
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout on embeddings and on each block's output")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout on attention weights")
    activation_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout inside the feed-forward block")
    layer_dropout: float = Field(
        0.0, ge=0, lt=1, description="Rate at which training skips a whole layer for a batch (Fan et al. 2020)"
    )
    norm: Literal["post", "pre"] = Field(
        "post", description="LayerNorm after each block as in the paper, or before it (steadier in training)"
    )
    activation: Literal["relu", "gelu", "swish"] = Field("relu", description="Feed-forward activation")
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = Field(
        "sinusoidal", description="Position encoding; rotary is Su et al. 2021, on self-attention"
    )
    max_positions: int = Field(
        1024, ge=8, le=1_000_000, description="Size of the table of learned positions; the others need none"
    )
    share_embeddings: Literal["all", "target", "none"] = Field(
        "all",
        description="all: source, target and output share one matrix (needs a joint vocabulary); "
        "target: target and output; none: three matrices",
    )
    output_bias: bool = Field(False, description="Add a trained number to the logit of each target token")

    @model_validator(mode="after")
    def _widths(self) -> "Model":
        if self.d_model % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide d_model ({self.d_model})")
        if self.positions == "rotary" and (self.d_model // self.heads) % 2:
            raise ValueError("rotary positions need an even head width, d_model / heads")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError("sinusoidal positions need an even d_model")
        return self
