"""Specs refuse wrong types, choices and values that are not finite, whoever wrote them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import pytest
import torch

from sicl import SICL, McDropout, Tent
from sicl.adapt import METHODS
from sicl.calibrate import CALIBRATORS
from sicl.errors import OptionError, require_path
from sicl.models.checkpoint import ModelConfig
from sicl.spec import Spec
from sicl.streams import STREAMS, Continual, Noisy
from sicl.train import TrainSpec

KINDS: dict[str, type] = {**METHODS, **CALIBRATORS, **STREAMS, "train": TrainSpec}


@dataclass(frozen=True, kw_only=True)
class Plugin(Spec):
    """A spec of a stranger, whose own rules forget `super()`."""

    name: str = "x"
    share: float = 0.5
    steps: int | Literal["auto"] = "auto"
    places: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.share > 1:
            raise OptionError("`share` must be at most 1.")


@pytest.mark.parametrize("value", ["a", None, float("nan"), float("inf"), [1.0], 1e300, True, 10**400])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_number_must_be_a_finite_number(kind: type, value: Any) -> None:
    """`lr="a"`, `share=nan` and their like never make a spec."""
    for field in fields(kind):
        if field.type == "float":
            with pytest.raises(OptionError, match=f"`{field.name}` must be a finite number"):
                kind(**{field.name: value})


@pytest.mark.parametrize("value", [2.5, "2", None, True, 2**63, float("nan"), 10**400])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_count_must_be_an_integer(kind: type, value: Any) -> None:
    """`steps=2.5` is not rounded, `seed=2**63` does not overflow later."""
    for field in fields(kind):
        if field.type == "int":
            with pytest.raises(OptionError, match=f"`{field.name}` must be an integer"):
                kind(**{field.name: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SICL(variants=2.5), "`variants` must be an integer .* or 'adaptive', got 2.5"),
        (lambda: SICL(members=("stile",)), "`members` must be one of softmax, .*Did you mean 'style'"),
        (lambda: SICL(temper=1), "`temper` must be True or False, got 1"),
        (lambda: SICL(layer=3), "`layer` must be a string"),
        (lambda: SICL(layer="\ud800"), "`layer` must be a string of valid Unicode"),
        (lambda: Tent(optimizer=["adam"]), "`optimizer` must be one of adam, sgd; got"),
        (lambda: McDropout(max_batch=0), "`max_batch` must be > 0"),
        (lambda: Noisy(base="benign"), "`base` must be a Stream, got 'benign'"),
        (lambda: Continual(corruptions=("fog", 3)), "`corruptions` must be a string"),
        (lambda: ModelConfig(arch="resnet18", std=(1, 1, 0)), r"`std\[2\]` must lie in"),
        (lambda: ModelConfig(arch="resnet18", width=2**40), "`width` must lie in"),
        (lambda: Plugin(share="x"), "`share` must be a finite number"),
        (lambda: Plugin(steps=torch.ones(2)), r"`steps` must be an integer .*got tensor\(\[1., 1.\]\)"),
    ],
)
def test_a_wrong_option_is_one_sentence(make: Any, message: str) -> None:
    """Argument, rule, value; also for a spec whose `__post_init__` does not call `super()`."""
    with pytest.raises(OptionError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_and_torch_and_lists_become_plain() -> None:
    """Equal options make equal specs, whose values any JSON writer knows."""
    spec = Plugin(share=np.float32(0.5), steps=np.int64(3), places=[np.float64(1), torch.tensor(2.0)])
    assert spec == Plugin(share=0.5, steps=3, places=(1.0, 2.0))
    assert [type(v) for v in (spec.share, spec.steps, *spec.places)] == [float, int, float, float]


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 300, "é" * 200, "a/" * 3000, 3, None, b"x"])
def test_a_path_must_be_one_that_a_file_system_can_hold(path: Any) -> None:
    """NUL, names of more than 255 bytes and things that are no path."""
    with pytest.raises(OptionError, match="`out` must be a path"):
        require_path(out=path)
