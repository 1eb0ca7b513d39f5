"""Models that see: the tower that turns patches of an image into tokens, and the images of prompts."""

import math
from collections.abc import Iterator
from typing import Self

from pydantic import Field, model_validator

from rlsim.schema.base import NonNegativeInt, PositiveInt, Strict

COLOURS = 3
VALUES_PER_MULTIPLY_ADD = 2


class VisionTower(Strict):
    """Encoder of images beside a language model: attention over the patches of one image, in both directions."""

    num_layers: PositiveInt
    """Layers."""
    hidden_size: PositiveInt
    """Width of a patch in the tower."""
    intermediate_size: PositiveInt
    """Inner width of the FFN."""
    gated_ffn: bool = False
    """Whether the FFN has a gate projection."""
    patch_pixels: PositiveInt
    """Side of a patch."""
    patch_frames: PositiveInt = 1
    """Frames that a patch takes; an image is repeated."""
    merged_patches: PositiveInt = 4
    """Patches that become one token."""
    mergers: PositiveInt = 1
    """Two-layer projections into the language model: one, and one for each layer whose patches enter deeper layers."""
    window_patches: PositiveInt | None = None
    """Patches that a windowed layer attends to; null: all layers attend to the whole image."""
    full_layers: NonNegativeInt = 0
    """Layers without the window, where there is one."""
    source: str = ""
    """Where it comes from."""

    def layer_matrices(self) -> tuple[tuple[str, int, int], ...]:
        """Name, outputs and inputs of the matrices of a layer."""
        hidden, inner = self.hidden_size, self.intermediate_size
        up = (2 if self.gated_ffn else 1) * inner
        return ("qkv", 3 * hidden, hidden), ("output", hidden, hidden), ("up", up, hidden), ("down", hidden, inner)

    def merger_matrices(self, model_width: int) -> tuple[tuple[str, int, int], ...]:
        """The same of a projection into a language model of hidden size ``model_width``, on tokens."""
        merged = self.merged_patches * self.hidden_size
        return ("merger", merged, merged), ("merger output", model_width, merged)

    def parameters(self, model_width: int) -> int:
        """Parameters of the tower and its projections, without norms and biases."""
        layer = sum(n * k for _, n, k in self.layer_matrices())
        merger = sum(n * k for _, n, k in self.merger_matrices(model_width))
        patch = COLOURS * self.patch_frames * self.patch_pixels**2 * self.hidden_size
        return patch + self.num_layers * layer + self.mergers * merger

    def attention_flops(self, patches: float) -> float:
        """FLOP of attention over one image of so many patches, in all layers: 4 x pairs of patches x width."""
        windowed = 0 if self.window_patches is None else self.num_layers - self.full_layers
        seen = (self.num_layers - windowed) * patches + windowed * min(patches, self.window_patches or patches)
        return 2 * VALUES_PER_MULTIPLY_ADD * patches * seen * self.hidden_size


class Images(Strict):
    """Images of a prompt; workload.prompt_tokens holds their tokens, as engines and trainers count them."""

    per_prompt: float = Field(1.0, gt=0, le=10_000)
    """Images of a prompt in the mean; frames of a video count as its pairs do."""
    tokens: int | None = Field(None, ge=1, le=1_000_000)
    """Tokens of an image; null: by its size."""
    width_pixels: int | None = Field(None, ge=1, le=100_000)
    """Width after the processor's resizing."""
    height_pixels: int | None = Field(None, ge=1, le=100_000)
    """Height after the processor's resizing."""
    token_pixels: int = Field(28, ge=1, le=1024)
    """Side of the square that becomes one token: 28 of Qwen2-VL and Qwen2.5-VL (14 x 2), 32 of Qwen3-VL (16 x 2), 28 of
    InternVL (14 x 2 within tiles)."""
    tile_pixels: int | None = Field(None, ge=1, le=10_000)
    """Side of the tiles that an image is cut into, with one more of the whole image (InternVL: 448); null: none."""

    @model_validator(mode="after")
    def _sized(self) -> Self:
        size = (self.width_pixels, self.height_pixels)
        if (self.tokens is None) == (None in size) or (self.tokens is not None and size != (None, None)):
            raise ValueError("give either tokens or both width_pixels and height_pixels")
        return self

    @property
    def image_tokens(self) -> int:
        """Tokens of an image: stated, or squares of token_pixels that cover it, or its tiles and the whole image's."""
        if self.tokens is not None:
            return self.tokens
        width, height = self.width_pixels or 1, self.height_pixels or 1
        if self.tile_pixels is None:
            return _cover(width, self.token_pixels) * _cover(height, self.token_pixels)
        tiles = _cover(width, self.tile_pixels) * _cover(height, self.tile_pixels)
        # A single tile is the whole image: it comes without a smaller picture of it.
        return (tiles + (1 if tiles > 1 else 0)) * _cover(self.tile_pixels, self.token_pixels) ** 2

    @property
    def prompt_tokens(self) -> float:
        """Tokens of a prompt that are of images."""
        return self.per_prompt * self.image_tokens


def check_images(images: Images, tower: VisionTower | None, model: str) -> None:
    """Raise ValueError where a model cannot see ``images``."""
    if tower is None:
        raise ValueError(f"workload.images: {model} has no vision tower (model.vision); give a model that sees")
    side = tower.patch_pixels * math.isqrt(tower.merged_patches)
    if images.tokens is None and images.token_pixels != side:
        raise ValueError(f"workload.images.token_pixels must be {side} for {model}; it is {images.token_pixels}")


def image_faults(images: Images, prompt_mean: float | None, agent: bool) -> Iterator[str]:
    """What of a workload its images contradict; prompt_mean: mean tokens of a prompt, where it is stated."""
    if agent:
        yield "images are of single responses: give no agent beside"
    if prompt_mean is not None and images.prompt_tokens > prompt_mean:
        yield (
            f"prompt_tokens hold the tokens of images: their mean ({prompt_mean:g}) must be at least the "
            f"{images.prompt_tokens:g} of images.per_prompt x tokens"
        )


def _cover(length: int, side: int) -> int:
    return -(-length // side)
