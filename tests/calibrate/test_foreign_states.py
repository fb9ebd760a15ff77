"""Loading a state is all or nothing, and what differs is said."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from calibrate_networks import SPECS, SmallNet, source_for

from sicl import SICL, McDropout, Panel, PseudoCal, Softmax, SourceData, Tent, TransCal
from sicl.errors import InputError, OptionError

SOURCE = SourceData(torch.rand(24, 3, 8, 8), torch.arange(24) % 4)
IMAGES = torch.rand(3, 6, 3, 8, 8, generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.filterwarnings("ignore:`.*cannot determine a temperature")


def _live(name: str) -> Any:
    torch.manual_seed(0)
    live = SPECS[name].attach(SmallNet(), source=source_for(name, SmallNet()))
    live(IMAGES[0])
    return live


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("name", SPECS)
def test_the_state_of_another_calibrator_is_named_and_changes_nothing(name: str) -> None:
    """Today: `KeyError: 'pairs'`, with half of the state replaced."""
    live = _live(name)
    before = copy.deepcopy(live.calibration.state_dict())
    for other in SPECS:
        if type(SPECS[other]) is type(SPECS[name]):
            continue
        state = _live(other).calibration.state_dict()
        if state.keys() == before.keys():
            continue
        with pytest.raises(
            InputError, match=f"is not one of .*{type(SPECS[name]).__name__}.*it (lacks|has) '"
        ):
            live.calibration.load_state_dict(state)
        assert _same(live.calibration.state_dict(), before)


@pytest.mark.parametrize("name", SPECS)
def test_every_part_that_is_damaged_is_named_and_changes_nothing(name: str) -> None:
    """A part missing, of another type, or NaN; the calibration goes on as if nobody had tried."""
    live, twin = _live(name), _live(name)
    for path in _paths(live.calibration.state_dict()):
        for damage in ("text", float("nan"), torch.full((2, 2, 2, 2), float("nan")), {"x": 1}):
            state = copy.deepcopy(live.calibration.state_dict())
            holder = state
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = damage
            with pytest.raises(InputError):
                live.calibration.load_state_dict(state)
    ours, theirs = live(IMAGES[1]), twin(IMAGES[1])
    assert torch.equal(ours.confidence, theirs.confidence)


def _paths(state: dict[str, Any]) -> list[tuple[str, ...]]:
    inner = [
        (key, *path) for key, value in state.items() if isinstance(value, dict) for path in _paths(value)
    ]
    return [*inner, *((key,) for key in state)]


@pytest.mark.parametrize("name", SPECS)
def test_states_of_the_start_and_of_later_are_taken_over_whole(name: str) -> None:
    """Both ways, into a new attachment and into one that has seen much; what is loaded is a copy."""
    fresh = SPECS[name].attach(SmallNet(), source=source_for(name, SmallNet()))
    start, used = copy.deepcopy(fresh.calibration.state_dict()), _live(name)
    later = copy.deepcopy(used.calibration.state_dict())
    fresh.calibration.load_state_dict(later)
    used.calibration.load_state_dict(start)
    assert _same(fresh.calibration.state_dict(), later)
    assert _same(used.calibration.state_dict(), start)


def test_a_calibrated_model_and_a_panel_load_all_parts_or_none() -> None:
    """A calibration that does not fit leaves the adapter as it was, and the other way round."""
    panel = Panel({"a": Softmax(), "b": PseudoCal(window=16)}, Tent().attach(SmallNet()))
    live = McDropout(passes=2).attach(Tent().attach(SmallNet()))
    panel(IMAGES[0]), live(IMAGES[0])
    for thing, breaks in (
        (panel, lambda s: s["calibrations"]["b"].pop("pairs")),
        (panel, lambda s: s["adapter"].update(method="Sar")),
        (live, lambda s: s.pop("adapter")),
        (live, lambda s: s["adapter"].update(method="Sar")),
        (live, lambda s: s["calibration"].update(generator=torch.zeros(3, dtype=torch.uint8))),
    ):
        before, state = copy.deepcopy(thing.state_dict()), copy.deepcopy(thing.state_dict())
        thing(IMAGES[1])
        moved = copy.deepcopy(thing.state_dict())
        breaks(state)
        with pytest.raises((InputError, OptionError), match="state"):
            thing.load_state_dict(state)
        assert _same(thing.state_dict(), moved)
        thing.load_state_dict(before)
        assert _same(thing.state_dict(), before)


@pytest.mark.parametrize(
    "state", [None, 3, [], {}, {"calibration": {}}, {"adapter": 1, "calibration": 2, "x": 3}]
)
def test_what_is_no_state_is_a_sentence(state: Any) -> None:
    """Whatever a file gave."""
    for live in (SICL(variants=2).attach(SmallNet()), Panel({"a": Softmax()}, SmallNet())):
        with pytest.raises(InputError, match="`state`"):
            live.load_state_dict(state)


def test_rows_of_another_network_are_refused_at_the_next_batch() -> None:
    """A new attachment cannot know the width of its features before it has seen a batch."""
    spec = TransCal(window=16)
    four, seven = (spec.attach(SmallNet(n_classes=n), source=SOURCE) for n in (4, 7))
    four(IMAGES[0])
    seven.calibration.load_state_dict(four.calibration.state_dict())
    with pytest.raises(InputError, match="of another network"):
        seven(IMAGES[1])
