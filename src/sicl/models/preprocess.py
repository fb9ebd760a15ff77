"""How a picture becomes what a model takes: size and crop as one frozen object, normalisation inside the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from sicl.errors import DataError, InputError, OptionError, require_choice, require_positive

INTERPOLATIONS = {
    name: Image.Resampling[name.upper()]
    for name in ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
}
"""Names of Pillow's filters."""
FITS = ("crop", "squash")
"""Keep the proportions, or resize to a square; then the centre is cropped."""
_ROUNDING = 2.5 / 255
"""Pixels are rounded after each step, by Pillow and by torch in their own order."""
CORNERS = ("nearest", "down")
"""How the corner of the crop is rounded: as timm and torchvision do, or as Hugging Face's processors do."""


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """From a picture to the tensor a model takes, as the model's own configuration says; `model.preprocess`.

    A picture that already has the model's size is taken as it is.

    Args:
        size: height and width of the model's input.
        resize: the shorter side becomes so many pixels before the centre is cropped; None means `size`.
        interpolation: one of `INTERPOLATIONS`.
        fit: "crop" keeps the proportions; "squash" makes both sides `resize` pixels.
        corner: one of `CORNERS`; matters where the crop lies half a pixel off the centre.
        mean: per-channel mean that the model itself takes from images in [0, 1].
        std: per-channel standard deviation that the model itself divides them by.
    """

    size: int
    resize: int | None = None
    interpolation: str = "bilinear"
    fit: str = "crop"
    corner: str = "nearest"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        require_positive(size=self.size)
        require_choice(INTERPOLATIONS, interpolation=self.interpolation)
        require_choice(FITS, fit=self.fit)
        require_choice(CORNERS, corner=self.corner)
        if self.resize is not None and self.resize < self.size:
            raise OptionError(f"`resize` must be at least `size` = {self.size}, got {self.resize}.")
        object.__setattr__(self, "mean", require_channels(mean=self.mean))
        object.__setattr__(self, "std", require_channels(std=self.std))
        require_positive(**{f"std[{i}]": value for i, value in enumerate(self.std)})

    @property
    def crop(self) -> float:
        """The share of the resized picture's shorter side that the model sees."""
        return self.size / (self.resize or self.size)

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the picture as a 3 x size x size float tensor in [0, 1]; the model normalises."""
        return torch.from_numpy(self.pixels(image)).permute(2, 0, 1).float().div_(255)

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """Return the picture as size x size x 3 numbers of 0 to 255."""
        image, size = image.convert("RGB"), self.size
        if image.size == (size, size):
            return np.array(image, np.uint8)
        resize, short = self.resize or size, min(image.size)
        # The longer side is rounded down, as torchvision does.
        keep = [resize if side == short else int(resize * side / short) for side in image.size]
        width, height = (resize, resize) if self.fit == "squash" else keep
        rounded = int if self.corner == "down" else round
        left, top = rounded((width - size) / 2), rounded((height - size) / 2)
        resized = image.resize((width, height), INTERPOLATIONS[self.interpolation])
        return np.array(resized.crop((left, top, left + size, top + size)), np.uint8)

    def to_json(self) -> str:
        """Return all fields as one line of JSON, for a checkpoint's header."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, *, source: str) -> Preprocess:
        """Read what `to_json` wrote.

        Raises:
            DataError: the text of the file called `source` is something else.
        """
        known = {field.name for field in fields(cls)}
        try:
            values = json.loads(text)
            return cls(**{name: value for name, value in values.items() if name in known})
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{source!r} has a damaged `preprocess` ({error}); write it again.") from error

    def normalised_by(self, mean: Sequence[float] | None, std: Sequence[float] | None) -> Preprocess:
        """Return this with another normalisation where one is given."""
        return replace(self, mean=tuple(mean or self.mean), std=tuple(std or self.std))


def require_agreement(preprocess: Preprocess, theirs: Callable[[Image.Image], Tensor], name: str) -> None:
    """Prepare a wide and a tall picture as the model's own library does, and compare: nothing is guessed.

    Args:
        preprocess: what was read from the model's configuration.
        theirs: the library's own way from a picture to the normalised 3 x H x W tensor.
        name: of the model, for the message.

    Raises:
        DataError: the two differ by more than rounding.
    """
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (preprocess.mean, preprocess.std))
    for shape in ((227, 301, 3), (260, 197, 3)):
        picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, np.uint8))
        ours, expected = preprocess(picture), torch.as_tensor(theirs(picture))
        if ours.shape != expected.shape or (expected * std + mean - ours).abs().max() > _ROUNDING:
            raise DataError(
                f"'{name}' prepares its pictures in a way that `Preprocess` cannot say; prepare them with its own "
                "library and build the model with `sicl.Normalized(network, (0, 0, 0), (1, 1, 1))`."
            )


def require_channels(**values: Any) -> tuple[float, ...]:
    """Return the one named value as a tuple of a number for each channel.

    Raises:
        OptionError: it is one number, or holds something else than numbers.
    """
    ((name, value),) = values.items()
    listed = list(value) if isinstance(value, Sequence | np.ndarray | Tensor) and len(value) else []
    numbers = (isinstance(v, Real) or (isinstance(v, Tensor) and v.numel() == 1) for v in listed)
    if isinstance(value, str) or not listed or not all(numbers):
        raise OptionError(f"`{name}` must be one number for each channel, as (0.5, 0.5, 0.5); got {value!r}.")
    return tuple(float(v) for v in listed)


def normalised(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return images as a network was trained on them.

    Raises:
        InputError: they have another number of channels than `mean`; torch would repeat a single one silently.
    """
    n_channels = mean.shape[1]
    if images.ndim == 4 and images.shape[1] == n_channels:
        return (images - mean) / std
    said = f"The model takes N x {n_channels} x H x W images, got {' x '.join(map(str, images.shape))}"
    raise InputError(f"{said}; {channels_remedy(tuple(images.shape), n_channels)}.")


def channels_remedy(shape: tuple[int, ...], n_channels: int) -> str:
    """Return how to make images of `n_channels` channels of a batch of this shape."""
    if len(shape) == 3:
        return "add the missing dimension with `images.unsqueeze(0)`"
    if len(shape) == 4 and shape[1] == 1:
        return f"repeat the grey channel with `images.expand(-1, {n_channels}, -1, -1)`"
    if len(shape) == 4 and shape[1] == 4 and n_channels == 3:
        return "leave out the alpha channel with `images[:, :3]`"
    return "give it the channels it was trained on"


class FromPixels(nn.Module):
    """A network that takes RGB images in [0, 1]; normalisation by `mean` and `std` is its first step."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        # Not persistent: the state dict keeps other libraries' names; the constants travel as configuration.
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)


class Normalized(nn.Module):
    """A classifier that takes images in [0, 1]: normalises them, then runs `model` and returns its logits.

    Args:
        model: any classifier that expects normalised images, as those of timm and torchvision do; an output
            with `logits` is unwrapped.
        mean: per-channel mean taken from the images.
        std: per-channel standard deviation they are divided by.
        preprocess: how pictures are resized and cropped for it, if known.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        mean: Sequence[float],
        std: Sequence[float],
        preprocess: Preprocess | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.preprocess = preprocess
        for name, values in (("mean", require_channels(mean=mean)), ("std", require_channels(std=std))):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        out = self.model(normalised(images, self.mean, self.std))
        if isinstance(out, Tensor):
            return out
        logits: Tensor = out["logits"] if isinstance(out, dict) else out.logits
        return logits


def preprocess_of(model: nn.Module) -> Preprocess | None:
    """Return how pictures are made ready for a model, if it came with that."""
    found = getattr(model, "preprocess", None)
    return found if isinstance(found, Preprocess) else None
