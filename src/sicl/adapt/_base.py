"""What every test-time adaptation method shares: the private copy, the two phases of a step, its state."""

from __future__ import annotations

import copy
import inspect
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from sicl.adapt._images import check_images, likely_mistake, other_size, random_images, refusals_in_words
from sicl.adapt._presets import Architecture, Preset, preset_options
from sicl.adapt._undo import Undo
from sicl.engine.norms import batch_norms, statistics_of
from sicl.engine.split import check_logits, logits_of
from sicl.errors import InputError, OptionError, UnsupportedModelError
from sicl.spec import Spec
from sicl.states import require_state, same
from sicl.types import SourceData

When = Literal["before", "after"]
M = TypeVar("M", bound="Method")


@dataclass(frozen=True)
class Moment:
    """The state that predicts, at the moment it predicts: all that a calibrator may look at.

    `network(images)` gives `logits` again, except where a method makes more of a batch than its network says
    (`Cotta`'s views, `Roid`'s prior, `Lame`'s neighbours). Whoever looks must leave the network as it was found.
    """

    network: nn.Module
    images: Tensor
    logits: Tensor


@dataclass(frozen=True, kw_only=True)
class Method(Spec):
    """A test-time adaptation method as configuration; `attach` makes it live on a private copy of a model.

    Args:
        predict: whether a batch is predicted "before" or "after" the update it causes.
        seed: of whatever the method draws at random.
    """

    predict: When = "before"
    seed: int = 0

    def __new__(cls: type[M], *_: Any, **options: Any) -> M:
        """Refuse options that the method does not have (an `objective` that it does not take) in our own words."""
        known = inspect.signature(cls.__init__).parameters
        unknown = [name for name in options if name not in known]
        if unknown and all(item.kind is not item.VAR_KEYWORD for item in known.values()):
            raise OptionError(
                f"`{cls.__name__}` has no option `{unknown[0]}`; it has {', '.join(list(known)[1:])}."
            )
        return super().__new__(cls)

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
            OptionError: the data set, preset, architecture or an option is unknown.
        """
        return cls(**{**preset_options(cls.__name__, name, preset, architecture), **changes})

    def attach(self, model: nn.Module, *, source: SourceData | None = None) -> Adapter:
        """Return a live adapter around a private copy of `model`; the caller's model is never touched.

        Args:
            model: returns N x C logits or an object with `.logits`, for images in [0, 1].
            source: labelled source data, for methods that need some.
        """
        # Also where the caller infers: tensors made in inference mode could never learn.
        with torch.inference_mode(False):
            adapter = self.adapter(_private_copy(model), source=source)
            # Now, so that no first picture waits for it.
            adapter._remember_start()
            return adapter

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        """Return the live object: the hook that a method of your own fills.

        Args:
            network: already a private copy, in eval mode and without gradients.
            source: what was given to `attach`.
        """
        # Until 0.1 the hook was called `_adapter(network, source)`; methods that still have that one work.
        old: Callable[..., Adapter] | None = getattr(self, "_adapter", None)
        if old is None:
            raise NotImplementedError(f"`{type(self).__name__}` must define `adapter(network, *, source)`.")
        return old(network, source)


class Adapter(ABC):
    """A network that adapts to its input. Calling it with images predicts, and adapts as its method does.

    A step has two phases, predict and update, in the order `spec.predict` says. Observers (calibrators)
    run on the state that predicts. The base class owns input checks, gradient mode, counters and state.

    Laws: steps of several threads come one after the other; a step that is interrupted, whatever the cause,
    leaves the state as it was before; so does an update that would make a parameter NaN or infinite
    (`counters["refused"]`).

    Args:
        spec: the method's configuration.
        network: the private copy that predicts; the same module object for the adapter's whole life.
    """

    reuses_forward: ClassVar[bool] = False
    """Whether the update differentiates the prediction's logits (then they are computed with gradients)."""

    writes: ClassVar[Literal["none", "counted", "any"]] = "any"
    """How updates write to the state: never, by torch's in-place operations only, or also through `.data`.

    Torch counts the writes of the second kind, so that what did not move is not copied before each step."""

    def __init__(self, spec: Method, network: nn.Module) -> None:
        self.spec = spec
        self.network = network
        # On the host: it draws scalars and slots, which would cost a device-to-host copy each.
        self.generator = torch.Generator().manual_seed(spec.seed)
        self._counts: dict[str, int | Tensor] = dict.fromkeys(
            ("batches", "samples", "updates", "kept", "resets", "refused"), 0
        )
        self._start: dict[str, Any] | None = None
        self._warned: set[str] = set()
        self._lock = threading.RLock()
        self._undo: Undo | None = None

    @property
    def counters(self) -> dict[str, int]:
        """What happened so far: batches, samples, updates, samples kept for them, resets, updates refused."""
        return {name: int(value) for name, value in self._counts.items()}

    def count(self, name: str, amount: int | Tensor) -> None:
        """Add to a counter; a tensor stays on its device until somebody reads `counters`."""
        self._counts[name] = self._counts[name] + amount

    def summary(self) -> dict[str, float]:
        """Return the counters as numbers for a record."""
        return {name: float(value) for name, value in self.counters.items()}

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits (N x C, float32, detached) of a batch, and adapt to it."""
        return self.step(images)

    def step(
        self, images: Tensor, observe: Callable[[Moment], None] | None = None, *, update: bool = True
    ) -> Tensor:
        """Predict and update, in the method's order; `observe` sees the state that predicts.

        With `update=False` the network predicts as it stands, and stays so.
        """
        # An update computes gradients even where the caller turned them off.
        with self._lock, torch.inference_mode(False), torch.enable_grad():
            images = self._checked(images)
            self._remember_start()
            with self._all_or_nothing(), refusals_in_words(self.network, images):
                before = self.spec.predict == "before"
                if update and not before:
                    self._update(images, None)
                with torch.set_grad_enabled(update and before and self.reuses_forward):
                    logits = self.forward(images)
                out = self._shown(images, logits, observe)
                if update and before:
                    self._update(images, logits)
                self._warn_of_one(len(images))
                self.count("batches", 1)
                self.count("samples", len(images))
        return out

    def warm_up(self, shape: Sequence[int], observe: Callable[[Moment], None] | None = None) -> None:
        """Do once, on random images of a shape (N x C x H x W), what a first batch would wait for.

        The update is rehearsed on a copy; `observe` sees this network, which stays as it is, as do its counters and
        random numbers.

        Raises:
            InputError: no batch can have this shape, or not one of this network and method.
        """
        images = random_images(shape)
        with self._lock, warnings.catch_warnings():
            # What random images look like is nobody's mistake.
            warnings.simplefilter("ignore")
            before, warned = self.state_dict(), set(self._warned)
            copy.deepcopy(self).step(images)
            try:
                self.step(images, observe, update=False)
            finally:
                self._warned = warned
                self._counts = dict(before["counters"])
                self.generator.set_state(before["generator"])
                if not same(self.state_dict(), before):
                    self._load(before)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the network that predicts, as it stands."""
        return logits_of(self.network(images))

    def correct(self, logits: Tensor) -> Tensor:
        """Return what to say for a batch whose logits are these; the update still gets the logits themselves."""
        return logits

    @property
    def adjusts(self) -> bool:
        """Whether logits may be other than the network's own of these images: `forward` or `correct` is replaced."""
        return type(self).forward is not Adapter.forward or type(self).correct is not Adapter.correct

    @abstractmethod
    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Adapt to a batch.

        Args:
            images: the checked batch, on the network's device.
            logits: the prediction's if it was made already (`predict="before"`), with gradients if the
                class says `reuses_forward`; else None.
        """

    def moving(self) -> list[Tensor]:
        """Return what must stay finite: all parameters of the network, unless a method knows better."""
        return [p.detach() for p in self.network.parameters()]

    def reset(self) -> None:
        """Return to the state at attachment, counters and random state included."""
        with self._lock:
            if self._start is not None:
                self._load(copy.deepcopy(self._start))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all that the next step depends on; later steps do not change it."""
        with self._lock:
            return copy.deepcopy({**self._state(), "counters": self.counters})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a copy of a state that `state_dict` gave, of this or another attachment of the same spec.

        All or nothing: a state that does not fit changes nothing.

        Raises:
            InputError: the state is of another method or spec, lacks parts, or has others.
        """
        with self._lock:
            before = self.state_dict()
            check_fits(state, before)
            self._remember_start()
            require_state(state, before, self._start, whose=type(self.spec).__name__)
            try:
                self._load(copy.deepcopy(state))
            except BaseException as error:
                self._load(before)
                if not isinstance(error, Exception):
                    raise
                reason = " ".join(str(error).split())
                raise InputError(
                    f"`state` does not fit this attachment of {type(self.spec).__name__} "
                    f"({type(error).__name__}: {reason:.200}); attach the same spec to the same model."
                ) from error

    def get_state(self) -> dict[str, Any]:
        """Return all that the next step depends on, not copied: the hook that methods with more state extend."""
        return {
            "method": type(self.spec).__name__,
            "spec": {field.name: _plain(getattr(self.spec, field.name)) for field in fields(self.spec)},
            "network": self.network.state_dict(),
            "counters": dict(self._counts),
            "generator": self.generator.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over a state, which belongs to the adapter from now on: extended together with `get_state`."""
        self.network.load_state_dict(state["network"])
        self._counts = dict(state["counters"])
        self.generator.set_state(state["generator"])

    def here(self, value: Any) -> Any:
        """Return a tensor, or a list or dict of some, on the network's device: a state may come from another one."""
        if isinstance(value, list):
            return [self.here(item) for item in value]
        # A module's state dict is more than a dict, and is loaded across devices as it is.
        if type(value) is dict:
            return {name: self.here(item) for name, item in value.items()}
        reference = next(self.network.parameters(), None)
        return value if reference is None or not isinstance(value, Tensor) else value.to(reference.device)

    # Until 0.1 the two hooks had these names; methods that still extend them work.
    def _state(self) -> dict[str, Any]:
        return self.get_state()

    def _load(self, state: dict[str, Any]) -> None:
        self.set_state(state)

    def __getstate__(self) -> dict[str, Any]:
        # A lock cannot be copied, and what a failed step goes back to is made anew.
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_undo")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock(), _undo=None)

    def _remember_start(self) -> None:
        if self._start is None:
            self._start = self.state_dict()
            self._undo = Undo(counted=self.writes == "counted", start=self._start)
            self._undo.take(self._state())

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Put the state back if the block does not end."""
        if self.writes != "none":
            self._undo = self._undo or Undo(counted=self.writes == "counted")
            self._undo.take(self._state())
        try:
            yield
        except BaseException:
            self._put_back()
            raise

    def _put_back(self) -> None:
        if self.writes != "none" and self._undo is not None:
            self._load(self._undo.state())

    def _update(self, images: Tensor, logits: Tensor | None) -> None:
        self.update(images, logits)
        floats = [tensor for tensor in self.moving() if tensor.is_floating_point()]
        # By one look at the device: a norm is finite if all values are, and not so large that their squares
        # overflow, which is the end as well.
        if floats and not torch.isfinite(torch.stack(torch._foreach_norm(floats))).all():
            self._put_back()
            self.count("refused", 1)

    def _shown(self, images: Tensor, logits: Tensor, observe: Callable[[Moment], None] | None) -> Tensor:
        with torch.no_grad():
            if self._counts["batches"] == 0:
                # Once: it waits for the device.
                check_logits(logits)
            out = self.correct(logits.detach()).float()
        if observe is not None:
            observe(Moment(self.network, images, out))
        return out

    def _checked(self, images: Tensor) -> Tensor:
        mistake = likely_mistake(*check_images(images))
        if mistake is not None:
            self._warn_once("range", mistake)
        size = other_size(self.network, images)
        if size is not None:
            raise InputError(size)
        reference = next(self.network.parameters(), None)
        if reference is not None and (images.device != reference.device or images.dtype != reference.dtype):
            images = images.to(reference.device, reference.dtype)
        return images.clone() if images.is_inference() else images

    def _warn_of_one(self, n: int) -> None:
        if n == 1 and any(statistics_of(layer) == "batch" for layer in batch_norms(self.network)):
            self._warn_once(
                "one",
                f"{type(self.spec).__name__} normalises a batch of one image with that image's own statistics, "
                "and most of its predictions will be wrong; give larger batches, use `Source`, `Rotta`, `Sotta` "
                "or `Lame`, or a network without batch norms.",
            )

    def _warn_once(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(message, stacklevel=5)


def check_fits(state: Any, own: dict[str, Any]) -> None:
    """Raise `InputError` unless `state` has the method, spec and parts of `own`; say what differs."""
    method = own["method"]
    found = state.get("method") if isinstance(state, dict) else type(state).__name__
    if found != method:
        raise InputError(
            f"`state` must come from an attachment of {method}, got one of {found!r}; "
            "attach the spec it was saved from."
        )
    for verb, names in (("lacks", own.keys() - state.keys()), ("has", state.keys() - own.keys())):
        if names:
            raise InputError(
                f"`state` {verb} the parts {', '.join(sorted(map(str, names)))}, unlike a state of {method} "
                "here; save it again with `state_dict`."
            )
    if state["spec"] != own["spec"]:
        raise InputError(
            f"`state` comes from another {method}: {_differences(state['spec'], own['spec'])}; "
            "attach the spec it was saved from."
        )


def _differences(theirs: Any, own: dict[str, Any]) -> str:
    if not isinstance(theirs, dict):
        return f"its spec is a {type(theirs).__name__}"
    names = [name for name in {**own, **theirs} if theirs.get(name) != own.get(name)]
    return ", ".join(f"{name} is {theirs.get(name)!r} there and {own.get(name)!r} here" for name in names)


def _plain(value: Any) -> Any:
    """Return an option as a value that a restricted `torch.load` reads back."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    # The repr of an object that is no dataclass may hold its address.
    return repr(value) if is_dataclass(value) or isinstance(value, tuple) else type(value).__name__


def _private_copy(model: nn.Module) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(f"`model` must be a torch.nn.Module, got {type(model).__name__}.")
    # A compiled model holds the module it was made from; the copy is what is run.
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedModelError(
            "`model` is scripted or traced (torch.jit), so its layers can be neither adapted nor perturbed; attach "
            "the torch.nn.Module that it was made from."
        )
    return copy.deepcopy(model).eval().requires_grad_(False)
