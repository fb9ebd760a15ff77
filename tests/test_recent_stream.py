"""Live classifiers remember the stream's recent confidences, so that a risk can be judged one picture at a time."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sicl
from sicl.errors import InputError


class Sure(nn.Module):
    """Four classes by the mean of four stripes, surely; an image of zeros is anybody's guess."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(8.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x.mean(dim=(1, 2)).unfold(1, 2, 2).mean(dim=2)


def pictures(n: int, seed: int = 0) -> Tensor:
    """Return images with one bright stripe each."""
    labels = torch.randint(0, 4, (n,), generator=torch.Generator().manual_seed(seed))
    return (
        nn.functional.one_hot(labels, 4).float().repeat_interleave(2, dim=1)[:, None, None].repeat(1, 3, 8, 1)
    )


def live(kind: str) -> Any:
    """Return a live classifier of each kind, each of which gives a prediction."""
    if kind == "panel":
        panel = sicl.Panel({"a": sicl.Softmax()}, Sure())
        panel.__class__ = type(
            "Alone", (sicl.Panel,), {"__call__": lambda self, x: sicl.Panel.__call__(self, x)["a"]}
        )
        return panel
    trusted = sicl.Softmax().attach(Sure())
    return trusted if kind == "calibrated" else sicl.Monitor().attach(trusted)


KINDS = pytest.mark.parametrize("kind", ["calibrated", "panel", "monitored"])


@KINDS
def test_pictures_one_at_a_time_are_accepted_like_batches(kind: str) -> None:
    """Not the first ones, which nothing is known beside; from then on all that are sure, and no guess."""
    images = pictures(200)
    images[1::2] = 0
    single = live(kind)
    taken = torch.cat([single(picture[None]).accept(risk=0.05) for picture in images])
    assert not taken[:10].any()
    assert taken[-80:].tolist() == [True, False] * 40
    assert live(kind)(images).accept(risk=0.05).tolist() == [True, False] * 100


@KINDS
def test_the_stream_is_the_last_1024_confidences_and_a_larger_batch_whole(kind: str) -> None:
    """In their order, this batch's last."""
    thing = live(kind)
    outs = [thing(torch.rand(400, 3, 8, 8)) for _ in range(3)]
    assert torch.equal(outs[0].recent, outs[0].confidence)
    assert torch.equal(outs[2].recent, torch.cat([out.confidence for out in outs])[-1024:])
    assert len(thing(torch.rand(1100, 3, 8, 8)).recent) == 1100


@KINDS
def test_a_saved_copied_or_pickled_stream_goes_on_and_a_reset_begins_anew(kind: str) -> None:
    """What is accepted next is the same; neither changes the other."""
    thing = live(kind)
    thing(pictures(100))
    fresh = live(kind)
    fresh.load_state_dict(thing.state_dict())
    others = [fresh, copy.deepcopy(thing)] + ([] if kind == "panel" else [pickle.loads(pickle.dumps(thing))])
    expected = thing(pictures(1, seed=1))
    for other in others:
        out = other(pictures(1, seed=1))
        assert torch.equal(out.recent, expected.recent)
        assert bool(out.accept(risk=0.05))
    thing.reset()
    assert len(thing(pictures(1)).recent) == 1


@KINDS
def test_warming_up_and_a_batch_that_fails_leave_the_stream_alone(kind: str) -> None:
    """Neither random images nor none at all are part of it."""
    thing = live(kind)
    thing(pictures(5))
    thing.warm_up((2, 3, 8, 8))
    with pytest.raises(InputError):
        thing(torch.empty(0, 3, 8, 8))
    assert len(thing(pictures(5)).recent) == 10


def test_images_that_cannot_be_read_are_no_part_of_the_stream() -> None:
    """A monitor leaves them out, and accepts none of them."""
    monitored = live("monitored")
    images = pictures(100)
    images[3] = float("nan")
    out = monitored(images)
    assert len(out.recent) == 99
    assert out.accept(risk=0.05).tolist() == [i != 3 for i in range(100)]


@pytest.mark.parametrize(
    "damage", [None, {"confidence": torch.tensor([float("nan")])}, {"confidence": "x"}, {}]
)
def test_a_state_without_its_stream_is_refused_in_a_sentence(damage: Any) -> None:
    """As one of an older version; nothing has changed then."""
    for kind, name in (("calibrated", "stream"), ("panel", "streams")):
        thing = live(kind)
        thing(pictures(5))
        state = copy.deepcopy(thing.state_dict())
        if damage is None:
            del state[name]
        else:
            state[name] = damage if kind == "calibrated" else {"a": damage}
        with pytest.raises(InputError, match=r"stream|confidence"):
            thing.load_state_dict(state)
        assert len(thing(pictures(5)).recent) == 10
