"""What is asked of a prediction: does it survive a mirror, a crop, a repair, another style, noise in the content?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sicl import perturb
from sicl.calibrate.sicl.kept import Kept
from sicl.calibrate.sicl.options import Name
from sicl.calibrate.sicl.variants import Draws
from sicl.engine.engine import Engine
from sicl.engine.norms import Recorded
from sicl.engine.split import Begun
from sicl.engine.variants import GivenVariants, Variants
from sicl.errors import InputError

Strength = Tensor | float

N_REPAIRS = 2
CROP = 16
"""A crop leaves out one part in so many of the image's side, on each."""


class Question(ABC):
    """One question about predictions: an object like no other, also in what a graph gives back.

    Args:
        engine: computes the votes: of which network, at which cut (`engine.split.point`) and by whose statistics
            (`engine.split.statistics`).
        draws: variants.
        kept: the statistics of the company, for a question that is asked in company.
    """

    name: ClassVar[Name]
    drawn: ClassVar[bool] = False
    """Whether its variants are drawn: as many as are asked for, and others every time."""

    def __init__(self, engine: Engine, draws: Draws, kept: Kept | None = None) -> None:
        self.engine, self.draws, self.kept = engine, draws, kept

    def require(self, images: Tensor) -> None:  # noqa: B027
        """Raise `InputError` if the question cannot be asked of such images."""

    @abstractmethod
    def look(self, begun: Begun) -> Tensor:
        """Return what must be known of a clean batch to draw variants of it."""

    @abstractmethod
    def draw(self, begun: Begun, known: Tensor, n: int, strength: Strength) -> Variants:
        """Return the next `n` variants.

        Args:
            begun: the clean batch.
            known: what `look` returned for it.
            n: how many.
            strength: how hard to perturb; 1 is the spec's.
        """

    def in_company(
        self, begun: Begun, known: Tensor, n: int, strength: Strength
    ) -> Iterator[tuple[Begun, Variants]]:
        """Yield the next variants beside the batch that each is resumed as: normalised as the company was."""
        assert self.kept is not None
        like = replace(begun, recorded=self.kept.of(self.name))
        yield like, self.draw(begun, known, n, strength)

    def seen(self, company: Begun) -> dict[str, Recorded]:
        """Return what the company is normalised with under the question."""
        variants = self.draw(company, self.look(company), 1, 1.0)
        return {self.name: self.engine.split.record(variants.make(company.base), company)}


class View(Question):
    """Other views of the images: the same every time, and for all who are asked; `look` gives them."""

    @abstractmethod
    def views(self, images: Tensor) -> Tensor:
        """Return the views of a batch, V x (its shape)."""

    def require(self, images: Tensor) -> None:
        _require_pixels(images)

    def look(self, begun: Begun) -> Tensor:
        return self.views(begun.images)

    def draw(self, begun: Begun, known: Tensor, n: int, strength: Strength) -> Variants:
        return self.engine.view(*known)

    def in_company(
        self, begun: Begun, known: Tensor, n: int, strength: Strength
    ) -> Iterator[tuple[Begun, Variants]]:
        assert self.kept is not None
        for i, view in enumerate(known):
            viewed = self.engine.begin(view, self.kept.of(f"{self.name}{i}"))
            yield viewed, GivenVariants(viewed.base.unsqueeze(0))

    def seen(self, company: Begun) -> dict[str, Recorded]:
        views = enumerate(self.views(company.images))
        return {f"{self.name}{i}": self.engine.begin(view).recorded for i, view in views}


class Mirror(View):
    """The mirrored images."""

    name = "mirror"

    def views(self, images: Tensor) -> Tensor:
        return images.flip(-1).unsqueeze(0)


class Crop(View):
    """The images without a sixteenth of their side all around, enlarged."""

    name = "crop"

    def views(self, images: Tensor) -> Tensor:
        return cropped(images).unsqueeze(0)


class Repair(View):
    """The images softened, and sharpened: what noise, blur or haze did to a prediction, one may undo."""

    name = "repair"

    def views(self, images: Tensor) -> Tensor:
        return repairs(images)


class Style(Question):
    """Channel statistics shaken; `look` gives them (N x 2 x C)."""

    name = "style"
    drawn = True

    def require(self, images: Tensor) -> None:
        perturb.style_statistics(self.engine.split.features(images[:2]))

    def look(self, begun: Begun) -> Tensor:
        return torch.stack(perturb.style_statistics(begun.features), dim=1)

    def draw(self, begun: Begun, known: Tensor, n: int, strength: Strength) -> Variants:
        return self.draws.style(known, n, strength)


class Content(Question):
    """Noise on every value; `look` gives the channels' standard deviations (N x C)."""

    name = "content"
    drawn = True

    def require(self, images: Tensor) -> None:
        perturb.style_statistics(self.engine.split.features(images[:2]))

    def look(self, begun: Begun) -> Tensor:
        return perturb.style_statistics(begun.features)[1]

    def draw(self, begun: Begun, known: Tensor, n: int, strength: Strength) -> Variants:
        return self.draws.content(begun.base, known, n, strength)


def views_of(images: Tensor, questions: Iterable[Question]) -> dict[Question, Tensor]:
    """Return the views that some of the questions are about, made once whoever is asked."""
    asking = [question for question in questions if isinstance(question, View)]
    views = {question.name: question for question in asking}
    made = {name: question.views(images) for name, question in views.items()}
    return {question: made[question.name] for question in asking}


def cropped(images: Tensor) -> Tensor:
    """Return N x C x H x W images without their margins, enlarged to their size."""
    _require_pixels(images)
    height, width = images.shape[-2:]
    down, right = max(1, height // CROP), max(1, width // CROP)
    centre = images[..., down:-down, right:-right]
    larger = F.interpolate(centre, (height, width), mode="bicubic", antialias=True)
    return larger.clamp_(*images.aminmax())


def repairs(images: Tensor) -> Tensor:
    """Return N x C x H x W images against noise, and against blur and haze.

    Without their finest detail; at full contrast and with detail doubled.
    """
    _require_pixels(images)
    darkest, brightest = (bound(dim=(1, 2, 3), keepdim=True) for bound in (images.amin, images.amax))
    # Images have values from 0 to 1; those of other networks have what they have.
    low, high = darkest.amin().clamp_max(0.0), brightest.amax().clamp_min(1.0)
    soft = _softened(images)
    # Detail is doubled first: what softens an image softens it at any contrast.
    detailed = torch.lerp(soft, images, 2.0)
    # Each image from `low` to `high`, twenty times its contrast at the most.
    contrast = ((brightest - darkest) / (high - low)).clamp_min(1 / 20)
    sharp = torch.addcdiv(low, detailed - darkest, contrast)
    return torch.stack([soft, sharp]).clamp_(low, high)


def _softened(images: Tensor) -> Tensor:
    """Each pixel as the mean of its neighbourhood, by weights 1 2 1 both ways: the mean of pairs, of pairs."""
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
    return F.avg_pool2d(F.avg_pool2d(padded, 2, stride=1), 2, stride=1)


def _require_pixels(images: Tensor) -> None:
    if images.ndim != 4 or min(images.shape[-2:]) < 4:
        raise InputError(
            f"crops need images N x C x H x W of at least 4 pixels, got shape {tuple(images.shape)}; leave "
            '"mirror", "crop" and "repair" out of `members` for other input.'
        )
