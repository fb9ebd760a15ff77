"""Image processors of Hugging Face, read as a `Preprocess`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PIL import Image
from torch import Tensor

from sicl.errors import DataError
from sicl.models.preprocess import Preprocess, require_agreement

_WHOLE = 384
"""ConvNeXt's processor crops pictures for networks of fewer pixels than this, and squashes them for others."""


def read_processor(processor: Any, name: str) -> tuple[Preprocess, bool]:
    """Return what an image processor does to pictures, and whether it gives their channels as BGR.

    Raises:
        DataError: it does something that a `Preprocess` cannot say.
    """
    size, crop = _sides(processor, "size"), _sides(processor, "crop_size")
    crop = crop if _yes(processor, "do_center_crop") else {}
    edge, share = size.get("shortest_edge"), getattr(processor, "crop_pct", None)
    side = crop.get("height") or size.get("height") or edge
    if side is None:
        raise DataError(f"The image processor of '{name}' states no size; build the model with `Normalized`.")
    resize = edge or size.get("height") or side
    squash = not edge
    if share and crop:  # PoolFormer's: the crop is a share of what it is cut from.
        resize, squash = int(resize / share), False
    elif share and edge:
        resize, squash = (edge, True) if edge >= _WHOLE else (int(edge / share), False)
    resample = getattr(processor, "resample", None)
    preprocess = Preprocess(
        size=side,
        resize=max(side, resize),
        interpolation=Image.Resampling(2 if resample is None else int(resample)).name.lower(),
        fit="squash" if squash else "crop",
        corner="down",
        **_normalisation(processor),
    )
    backwards = _yes(processor, "do_flip_channel_order")

    def prepared(picture: Image.Image) -> Tensor:
        made: Tensor = processor(picture, return_tensors="pt")["pixel_values"][0]
        return made.flip(0) if backwards else made

    require_agreement(preprocess, prepared, name)
    return preprocess, backwards


def _sides(processor: Any, field: str) -> Mapping[str, int]:
    value = getattr(processor, field, None)
    if value is None:
        return {}
    return {"height": value, "width": value} if isinstance(value, int) else dict(value)


def _normalisation(processor: Any) -> dict[str, tuple[float, ...]]:
    if not _yes(processor, "do_normalize"):
        return {}
    # EfficientNet's divides a second time.
    power = 2 if _yes(processor, "include_top") else 1
    return {
        "mean": tuple(processor.image_mean),
        "std": tuple(value**power for value in processor.image_std),
    }


def _yes(processor: Any, flag: str) -> bool:
    return bool(getattr(processor, flag, False))
