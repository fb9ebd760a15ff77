"""What every test-time adaptation method shares: the private copy, the two phases of a step, its state."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from sicl.adapt._presets import Architecture, Preset, preset_options
from sicl.engine.split import logits_of
from sicl.errors import InputError, UnsupportedModelError, require_choice
from sicl.types import SourceData

When = Literal["before", "after"]
M = TypeVar("M", bound="Method")


@dataclass(frozen=True)
class Moment:
    """The state that predicts, at the moment it predicts: all that a calibrator may look at.

    `network(images)` gives `logits` again; whoever looks must leave the network as it was found.
    """

    network: nn.Module
    images: Tensor
    logits: Tensor


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A test-time adaptation method as configuration; `attach` makes it live on a private copy of a model.

    Args:
        predict: whether a batch is predicted "before" or "after" the update it causes.
        seed: of whatever the method draws at random.
    """

    predict: When = "before"
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice(("before", "after"), predict=self.predict)

    @classmethod
    def for_dataset(
        cls: type[M],
        name: str,
        *,
        preset: Preset = "paper",
        architecture: Architecture = "resnet",
        **changes: Any,
    ) -> M:
        """Return the method with the published hyper-parameters for a data set.

        Args:
            name: "cifar10", "cifar100", "imagenet", or "demo" (the same as "cifar10").
            preset: "paper": as the SICL paper's appendix prints them; "official": as the method's authors.
            architecture: "resnet" or "vit"; some learning rates differ.
            changes: options that differ from the preset.

        Raises:
            OptionError: the data set, preset or architecture is unknown.
        """
        return cls(**{**preset_options(cls.__name__, name, preset, architecture), **changes})

    def attach(self, model: nn.Module, *, source: SourceData | None = None) -> Adapter:
        """Return a live adapter around a private copy of `model`; the caller's model is never touched.

        Args:
            model: returns N x C logits or an object with `.logits`, for images in [0, 1].
            source: labelled source data, for methods that need some.
        """
        return self._adapter(_private_copy(model), source)

    @abstractmethod
    def _adapter(self, network: nn.Module, source: SourceData | None) -> Adapter:
        """Return the live object; `network` is already a private copy in eval mode without gradients."""


class Adapter(ABC):
    """A network that adapts to its input. Calling it with images predicts, and adapts as its method does.

    A step has two phases, predict and update, in the order `spec.predict` says. Observers (calibrators)
    run on the state that predicts. The base class owns input checks, gradient mode, counters and state.

    Args:
        spec: the method's configuration.
        network: the private copy that predicts; the same module object for the adapter's whole life.
    """

    reuses_forward: ClassVar[bool] = False
    """Whether the update differentiates the prediction's logits (then they are computed with gradients)."""

    def __init__(self, spec: Method, network: nn.Module) -> None:
        self.spec = spec
        self.network = network
        # On the host: it draws scalars and slots, which would cost a device-to-host copy each.
        self.generator = torch.Generator().manual_seed(spec.seed)
        self._counts: dict[str, int | Tensor] = dict.fromkeys(
            ("batches", "samples", "updates", "kept", "resets"), 0
        )
        self._start: dict[str, Any] | None = None

    @property
    def counters(self) -> dict[str, int]:
        """What happened so far: batches and samples seen, updates done, samples kept for them, resets."""
        return {name: int(value) for name, value in self._counts.items()}

    def count(self, name: str, amount: int | Tensor) -> None:
        """Add to a counter; a tensor stays on its device until somebody reads `counters`."""
        self._counts[name] = self._counts[name] + amount

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits (N x C, float32, detached) of a batch, and adapt to it."""
        return self.step(images)

    def step(self, images: Tensor, observe: Callable[[Moment], None] | None = None) -> Tensor:
        """Predict and update, in the method's order; `observe` sees the state that predicts."""
        with _gradients_possible():
            images = self._checked(images)
            self._remember_start()
            with _batch_size_errors(len(images)):
                if self.spec.predict == "before":
                    with torch.set_grad_enabled(self.reuses_forward):
                        logits = self.forward(images)
                    self._show(images, logits, observe)
                    self.update(images, logits)
                else:
                    self.update(images, None)
                    with torch.no_grad():
                        logits = self.forward(images)
                    self._show(images, logits, observe)
        self.count("batches", 1)
        self.count("samples", len(images))
        return logits.detach().float()

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the network that predicts, as it stands."""
        return logits_of(self.network(images))

    @abstractmethod
    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Adapt to a batch.

        Args:
            images: the checked batch, on the network's device.
            logits: the prediction's if it was made already (`predict="before"`), with gradients if the
                class says `reuses_forward`; else None.
        """

    def reset(self) -> None:
        """Return to the state at attachment, counters and random state included."""
        if self._start is not None:
            self._load(copy.deepcopy(self._start))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all that the next step depends on; later steps do not change it."""
        return copy.deepcopy(self._state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a copy of a state that `state_dict` gave, of this or another attachment of the same spec.

        Raises:
            InputError: the state is of another method.
        """
        method = type(self.spec).__name__
        if state.get("method") != method:
            raise InputError(
                f"`state` must come from an attachment of {method}, got one of {state.get('method')!r}; "
                "attach the spec it was saved from."
            )
        self._remember_start()
        self._load(copy.deepcopy(state))

    def _state(self) -> dict[str, Any]:
        """Return all that the next step depends on; methods with more state extend it."""
        return {
            "method": type(self.spec).__name__,
            "network": self.network.state_dict(),
            "counters": self.counters,
            "generator": self.generator.get_state(),
        }

    def _load(self, state: dict[str, Any]) -> None:
        """Take over a state; it belongs to the adapter from now on. Extended together with `_state`."""
        self.network.load_state_dict(state["network"])
        self._counts = dict(state["counters"])
        self.generator.set_state(state["generator"])

    def _remember_start(self) -> None:
        if self._start is None:
            self._start = self.state_dict()

    def _show(self, images: Tensor, logits: Tensor, observe: Callable[[Moment], None] | None) -> None:
        if observe is not None:
            observe(Moment(self.network, images, logits.detach().float()))

    def _checked(self, images: Tensor) -> Tensor:
        check_images(images)
        reference = next(self.network.parameters(), None)
        if reference is not None and (images.device != reference.device or images.dtype != reference.dtype):
            images = images.to(reference.device, reference.dtype)
        return images.clone() if images.is_inference() else images


def check_images(images: Any) -> None:
    """Raise `InputError` unless `images` is a non-empty N x C x H x W float tensor without NaN."""
    if not isinstance(images, Tensor):
        raise InputError(f"`images` must be a torch.Tensor, got {type(images).__name__}.")
    if images.ndim != 4:
        raise InputError(
            f"`images` must be N x C x H x W, got shape {tuple(images.shape)}; add the missing batch or "
            "channel dimension with `unsqueeze`."
        )
    if not images.is_floating_point():
        raise InputError(f"`images` must be floats in [0, 1], got {images.dtype}; divide uint8 by 255.")
    if images.shape[0] == 0:
        raise InputError("`images` is an empty batch; skip it.")
    # One reduction and one look at the device; summed in float32, where half precision would overflow.
    if not bool(torch.isfinite(images.detach().sum(dtype=torch.float32))):
        raise InputError("`images` contain NaN or infinite values; drop those samples first.")


def _private_copy(model: nn.Module) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(f"`model` must be a torch.nn.Module, got {type(model).__name__}.")
    return copy.deepcopy(model).eval().requires_grad_(False)


@contextmanager
def _gradients_possible() -> Iterator[None]:
    """Let an update compute gradients even when the caller turned them off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def _batch_size_errors(n: int) -> Iterator[None]:
    """Say in our own words what torch says about batch statistics of a single value."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InputError(
            f"`images` is a batch of {n}, from which a batch norm of this network sees one value a channel "
            "and cannot compute statistics; give at least two images a batch, or use `Source()`."
        ) from error
