"""Training: data on the device, one synchronisation an epoch, a file to go on from, a checkpoint at the end."""

from __future__ import annotations

import copy
import math
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sicl.data.files import written
from sicl.errors import DataError, InputError, OptionError
from sicl.models.checkpoint import save_checkpoint
from sicl.train.augment import apply_mix, augment, draw_mix, pad_images, to_float
from sicl.train.spec import TrainSpec


def make_optimizer(model: nn.Module, spec: TrainSpec) -> torch.optim.Optimizer:
    """Return the spec's optimiser over all parameters of the model."""
    fused = next(model.parameters()).is_cuda
    if spec.optimizer == "sgd":
        return torch.optim.SGD(
            model.parameters(),
            lr=spec.lr,
            momentum=spec.momentum,
            nesterov=spec.momentum > 0,
            weight_decay=spec.weight_decay,
            fused=fused or None,
        )
    matrices = [p for name, p in model.named_parameters() if p.ndim > 1 and not _is_token(name)]
    others = [p for name, p in model.named_parameters() if p.ndim <= 1 or _is_token(name)]
    groups = [
        {"params": matrices, "weight_decay": spec.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=spec.lr, betas=(0.9, 0.999), fused=fused or None)


def _is_token(name: str) -> bool:
    return name.endswith(("cls_token", "pos_embed"))


def learning_rate(spec: TrainSpec, step: int, steps_per_epoch: int) -> float:
    """Return the rate of a step: linear warm-up, then half a cosine down to 0."""
    # A run shorter than twice the warm-up warms up for half of its steps.
    warmup = min(spec.warmup_epochs, spec.epochs / 2) * steps_per_epoch
    if step < warmup:
        return spec.lr * (step + 1) / (warmup + 1)
    total = spec.epochs * steps_per_epoch
    return spec.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))


class Average:
    """An exponential average of a model's weights and BN statistics, kept on its device."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._decay = decay
        self._n_updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move towards `model`; the first steps average over what has been seen so far."""
        self._n_updates += 1
        weight = 1 - min(self._decay, self._n_updates / (self._n_updates + 9))
        own, theirs = _floats(self.model), _floats(model)
        torch._foreach_lerp_(own, theirs, weight)

    def state_dict(self) -> dict[str, object]:
        """Return weights and counter."""
        return {"model": self.model.state_dict(), "n_updates": self._n_updates}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore what `state_dict` returned."""
        self.model.load_state_dict(state["model"])  # type: ignore[arg-type]
        self._n_updates = int(state["n_updates"])  # type: ignore[call-overload]


def _floats(model: nn.Module) -> list[Tensor]:
    return [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]


_FORMAT = 1


def write_resume(
    path: Path, key: str, state: dict[str, object], history: list[dict[str, float | None]]
) -> None:
    """Write the state after an epoch aside, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path) as file:
        torch.save({"format": _FORMAT, "key": key, "state": state, "history": history}, file)


def read_resume(
    path: Path, key: str, device: torch.device
) -> tuple[dict[str, Any] | None, list[dict[str, float | None]]]:
    """Return state and history of a killed run, or nothing if there is none.

    Raises:
        DataError: the file is damaged.
        OptionError: the file is of a run with another spec or other data.
    """
    if not path.exists():
        return None, []
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
        found, state, history = saved["key"], saved["state"], saved["history"]
    except Exception as error:  # a pickle is a program: a damaged one fails in any way
        raise DataError(f"The resume file {path.name!r} is damaged; delete it to start anew.") from error
    if found != key:
        raise OptionError(
            f"The resume file {path.name!r} is of a run with other options or data; repeat that run, or delete it."
        )
    return state, history


Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]
_EVAL_BATCH = 1000


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What one epoch did.

    Args:
        epoch: counted from 1.
        loss: mean training loss.
        accuracy: on the validation data, in [0, 1]; None without any.
        seconds: wall time of the epoch, validation included.
    """

    epoch: int
    loss: float
    accuracy: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A trained network in eval mode (the average of the weights if the spec keeps one) and its history."""

    model: nn.Module
    history: tuple[EpochReport, ...]


class _Training:
    """The moving parts of one training run."""

    def __init__(self, spec: TrainSpec, images: Tensor, labels: Tensor, compile_model: bool) -> None:
        self.spec = spec
        self.size = (images.shape[1], images.shape[2])
        self.padded = pad_images(images, spec.crop_padding)
        self.labels = labels
        self.batch_size = min(spec.batch_size, len(labels))
        self.steps_per_epoch = len(labels) // self.batch_size
        self.model = _fresh_model(spec).to(images.device)
        if spec.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.forward: Callable[[Tensor], Tensor] = torch.compile(self.model) if compile_model else self.model
        self.optimizer = make_optimizer(self.model, spec)
        self.average = Average(self.model, spec.ema) if spec.ema else None

    @property
    def best(self) -> nn.Module:
        """The network to validate and keep."""
        return self.average.model if self.average else self.model

    def train_epoch(self, epoch: int, on_step: Callable[[int, int], None] | None) -> float:
        """Run one epoch (counted from 0) and return the mean loss."""
        spec, device = self.spec, self.padded.device
        # Seeded anew each epoch: a resumed run needs no random state from the killed one.
        generator = torch.Generator(device).manual_seed((spec.seed * 1_000_003 + epoch) % 2**63)
        rng = np.random.default_rng([spec.seed, epoch])
        order = torch.randperm(len(self.labels), generator=generator, device=device)
        self.model.train()
        total = torch.zeros((), device=device)
        for step in range(self.steps_per_epoch):
            index = order[step * self.batch_size : (step + 1) * self.batch_size]
            total += self._step(index, epoch * self.steps_per_epoch + step, generator, rng)
            if on_step is not None:
                on_step(step + 1, self.steps_per_epoch)
        return float(total) / self.steps_per_epoch

    def _step(self, index: Tensor, step: int, generator: torch.Generator, rng: np.random.Generator) -> Tensor:
        spec = self.spec
        images = augment(self.padded, index, size=self.size, spec=spec, generator=generator)
        labels = self.labels[index]
        mix = draw_mix(spec.mix, self.size, rng) if spec.mix else None
        if mix is not None:
            images = apply_mix(images, mix)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(spec, step, self.steps_per_epoch)
        with _autocast(images.device, spec.precision):
            logits = self.forward(images)
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=spec.label_smoothing)
        if mix is not None:
            other = F.cross_entropy(logits.float(), labels.roll(1), label_smoothing=spec.label_smoothing)
            loss = mix.share * loss + (1 - mix.share) * other
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if spec.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), spec.clip_norm)
        self.optimizer.step()
        if self.average:
            self.average.update(self.model)
        return loss.detach()

    def state_dict(self) -> dict[str, object]:
        """Return all that the next epoch depends on."""
        average = self.average.state_dict() if self.average else None
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": average,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore what `state_dict` returned."""
        self.model.load_state_dict(state["model"])  # type: ignore[arg-type]
        self.optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]
        if self.average:
            self.average.load_state_dict(state["average"])  # type: ignore[arg-type]


def fit(
    spec: TrainSpec,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    val: Labelled | None = None,
    device: torch.device | str = "cpu",
    resume: Path | str | None = None,
    compile_model: bool = False,
    on_step: Callable[[int, int], None] | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> TrainResult:
    """Train a network and return it.

    Args:
        spec: the recipe.
        images: uint8, N x H x W x 3.
        labels: int64, N.
        val: images and labels to measure the accuracy on after each epoch.
        device: where data and network live.
        resume: a file that is rewritten after each epoch; if it is there already, the run goes on from it.
        compile_model: run the network through `torch.compile`.
        on_step: called after each step with its number in the epoch and how many there are.
        on_epoch: called after each epoch, once its resume file is written.

    Raises:
        InputError: images and labels do not fit each other or the spec.
        OptionError: the resume file is of another run, or the loss is no longer finite.
    """
    target = torch.device(device)
    _check(spec, images, labels)
    run = _Training(spec, _to_device(images, target), _to_device(labels, target), compile_model)
    key = f"{spec.to_json()} {zlib.crc32(images.tobytes())} {zlib.crc32(labels.tobytes())}"
    state, history = (None, []) if resume is None else read_resume(Path(resume), key, target)
    if state is not None:
        run.load_state_dict(state)
    reports = [EpochReport(**entry) for entry in history]  # type: ignore[arg-type]
    held_out = None if val is None else (_to_device(val[0], target), _to_device(val[1], target))
    with _fast_kernels(target):
        for epoch in range(len(reports), spec.epochs):
            reports.append(_one_epoch(run, epoch, held_out, on_step))
            if resume is not None:
                entries = [asdict(report) for report in reports]
                write_resume(Path(resume), key, run.state_dict(), entries)
            if on_epoch is not None:
                on_epoch(reports[-1])
    return TrainResult(model=run.best.eval(), history=tuple(reports))


def _one_epoch(
    run: _Training, epoch: int, val: tuple[Tensor, Tensor] | None, on_step: Callable[[int, int], None] | None
) -> EpochReport:
    start = time.perf_counter()
    loss = run.train_epoch(epoch, on_step)
    if not math.isfinite(loss):
        raise OptionError(
            f"`lr` = {run.spec.lr} made the loss {loss} in epoch {epoch + 1}; lower it or warm up."
        )
    accuracy = None if val is None else measure_accuracy(run.best, *val, precision=run.spec.precision)
    return EpochReport(epoch=epoch + 1, loss=loss, accuracy=accuracy, seconds=time.perf_counter() - start)


@torch.no_grad()
def measure_accuracy(
    model: nn.Module, images: Tensor, labels: Tensor, *, precision: str = "float32"
) -> float:
    """Return the share of uint8 N x H x W x 3 images that `model`, in eval mode, classifies rightly."""
    model.eval()
    right = torch.zeros((), device=images.device, dtype=torch.long)
    for part, truth in zip(torch.split(images, _EVAL_BATCH), torch.split(labels, _EVAL_BATCH)):
        with _autocast(images.device, precision):
            logits = model(to_float(part, channels_last=False))
        right += (logits.argmax(1) == truth).sum()
    return float(right) / len(labels)


def _fresh_model(spec: TrainSpec) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        # The CPU generator only: `torch.manual_seed` would move the CUDA ones too, which the fork does not restore.
        torch.default_generator.manual_seed(spec.seed)
        return spec.model.build()


def _to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(array)).to(device)


def _autocast(device: torch.device, precision: str) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")


@contextmanager
def _fast_kernels(device: torch.device) -> Iterator[None]:
    """Let cuDNN choose its convolution by timing, for this run only."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _check(spec: TrainSpec, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        raise InputError(f"`images` must be uint8 N x H x W x 3, got {images.dtype} of shape {images.shape}.")
    if labels.shape != (len(images),) or len(images) == 0:
        raise InputError(f"`labels` must be one for each of {len(images)} images, got shape {labels.shape}.")
    if labels.min() < 0 or labels.max() >= spec.n_classes:
        raise InputError(
            f"`labels` must lie in [0, {spec.n_classes - 1}], got {labels.min()} to {labels.max()}; set `n_classes`."
        )
    if spec.arch.startswith("vit") and images.shape[1:3] != (32, 32):
        raise InputError(
            f"`images` must be 32 x 32 for {spec.arch}, got {images.shape[1]} x {images.shape[2]}."
        )


def train_to_file(
    spec: TrainSpec,
    train: Labelled,
    val: Labelled,
    out: Path | str,
    *,
    dataset: str,
    device: torch.device | str = "cpu",
    half: bool = False,
    compile_model: bool = False,
    on_step: Callable[[int, int], None] | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> TrainResult:
    """Train, and write the weights with the whole configuration inside; goes on after a kill.

    Args:
        spec: the recipe.
        train: training images and labels.
        val: validation images and labels.
        out: the .safetensors file; `OUT.resume` next to it lives as long as the run does.
        dataset: the data set's name, for the file.
        device: where to train.
        half: store float16.
        compile_model: as for `fit`.
        on_step: as for `fit`.
        on_epoch: as for `fit`.

    Raises:
        OptionError: `out` exists already or does not end in .safetensors.
    """
    out = Path(out)
    if out.suffix != ".safetensors":
        raise OptionError(f"`out` must end in .safetensors, got {out.name!r}.")
    if out.exists():
        raise OptionError(
            f"`out` must be a new file, but {str(out)!r} exists; move it away or choose another."
        )
    resume = out.with_name(out.name + ".resume")
    told: dict[str, Any] = {"compile_model": compile_model, "on_step": on_step, "on_epoch": on_epoch}
    result = fit(spec, *train, val=val, device=device, resume=resume, **told)
    metadata = {**spec.model.to_metadata(), "dataset": dataset, "train": spec.to_json()}
    accuracy = result.history[-1].accuracy
    if accuracy is not None:
        metadata["val_accuracy"] = f"{accuracy:.4f}"
    save_checkpoint(out, result.model.state_dict(), metadata, dtype=torch.float16 if half else None)
    resume.unlink(missing_ok=True)
    return result
