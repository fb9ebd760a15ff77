"""Where `layer="auto"` cuts, and what it says when it cannot."""

from __future__ import annotations

import pytest
from engine_networks import build
from torch import nn

from sicl.engine.cut import Point, find_point, find_stages
from sicl.errors import OptionError, UnsupportedModelError


@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("resnet18", "layer1"),
        ("resnet50", "layer1"),
        ("vit", "blocks.0:input"),
        ("vgg", "0.2"),
        ("functional", "bn1"),
        ("output", "network.layer1"),
    ],
)
def test_auto_finds_the_first_stage_or_the_tokens_that_enter_the_first_block(name: str, point: str) -> None:
    """Convolutional networks are cut after the first stage, transformers before their first block."""
    assert str(find_point(build(name))) == point


@pytest.mark.parametrize(
    ("name", "module", "side"), [("hf_resnet", "stages.0", "output"), ("hf_vit", "0", "input")]
)
def test_auto_finds_its_way_in_hugging_face_models(name: str, module: str, side: str) -> None:
    """Nested encoders with lists of stages or blocks are understood too."""
    pytest.importorskip("transformers")
    point = find_point(build(name))
    assert point.name.endswith(module)
    assert point.side == side


def test_stages_that_are_bare_lists_are_cut_at_the_module_that_is_called() -> None:
    """Hugging Face's PoolFormer keeps blocks in lists of lists, which nobody calls."""

    def block() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))

    stages = nn.ModuleList(nn.ModuleList(block() for _ in range(2)) for _ in range(2))
    model = nn.ModuleDict({"stem": nn.Conv2d(3, 3, 1), "stages": stages})
    assert find_point(model, "stem") == Point("stages.0.0", "input")
    assert find_point(model) == Point("stages.0.1")


def test_a_name_with_input_names_what_goes_into_the_module() -> None:
    """Both sides can be chosen by name; the output is the default."""
    model = build("resnet18")
    assert find_point(model, "layer2:input") == Point("layer2", "input")
    assert find_point(model, "layer2:output") == find_point(model, "layer2") == Point("layer2")


def test_an_unknown_name_lists_near_ones() -> None:
    """A typo is answered with what was probably meant."""
    with pytest.raises(OptionError, match=r"no 'layer_1'.*Did you mean.*'layer1'"):
        find_point(build("resnet18"), "layer_1")


def test_a_name_like_nothing_lists_the_first_modules() -> None:
    """Without a near miss the error still shows how names look."""
    with pytest.raises(OptionError, match="first modules are conv1, bn1"):
        find_point(build("resnet18"), "zzz")


def test_an_unknown_side_is_refused() -> None:
    """Only input and output exist."""
    with pytest.raises(OptionError, match="':input' or ':output'"):
        find_point(build("resnet18"), "layer1:middle")


def test_a_network_without_layers_says_so() -> None:
    """Nothing to perturb: the error names the way out."""
    with pytest.raises(UnsupportedModelError, match="layer="):
        find_point(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)))


def test_stages_come_in_order() -> None:
    """Stages are what SAR and the ablations count."""
    assert find_stages(build("resnet18")) == ["layer1", "layer2", "layer3", "layer4"]
    assert find_stages(build("vit")) == ["blocks.0", "blocks.1", "blocks.2"]


def _conv_stage() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))


class _TokenBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))


def _tokens(depth: int) -> nn.Module:
    return nn.Sequential(*(_TokenBlock() for _ in range(depth)))


@pytest.mark.parametrize(
    ("network", "point"),
    [
        (nn.ModuleDict({"a": _tokens(2), "b": _tokens(6)}), "a.0:input"),
        (
            nn.ModuleDict({"stages": nn.ModuleList([_conv_stage(), _conv_stage()]), "b": _tokens(3)}),
            "stages.0",
        ),
        (nn.ModuleDict({"stem": nn.Sequential(_conv_stage(), _conv_stage()), "b": _tokens(3)}), "b.0:input"),
        (
            nn.ModuleDict({"layer1": _conv_stage(), "stage2": _conv_stage(), "stage3": _conv_stage()}),
            "layer1",
        ),
        (nn.ModuleDict({"s1": _conv_stage(), "s2": _conv_stage()}), "s1"),
    ],
    ids=["hierarchical", "hybrid", "stem", "mixed names", "regnet"],
)
def test_the_first_stage_counts_whatever_it_is_made_of(network: nn.Module, point: str) -> None:
    """Hierarchical transformers, hybrids and mixed names are cut early, not at their longest list of blocks."""
    assert str(find_point(network)) == point
