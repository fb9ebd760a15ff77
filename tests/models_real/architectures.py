"""Which networks of timm and torchvision are tried, and what is asked of each."""

from __future__ import annotations

import importlib.metadata
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import sicl
from sicl.models.libraries import LIBRARIES

PAGE = "docs/architectures.md"


@dataclass(frozen=True)
class Architecture:
    """One network with random weights.

    Args:
        name: as `load_model` takes it.
        size: the pixels it is tried with; small, to be fast.
        options: for its constructor, where the size must be known to it.
    """

    name: str
    size: int = 64
    options: dict[str, Any] = field(default_factory=dict)


def _sized(name: str, size: int = 64, **options: Any) -> Architecture:
    return Architecture(name, size, {"img_size": size, **options})


_TIMM = [
    "resnet18",
    "resnet26t",
    "resnext26ts",
    "skresnet18",
    "cspresnet50",
    "nf_resnet26",
    "nf_regnet_b0",
    "nfnet_l0",
    "regnetx_002",
    "regnety_002",
    "efficientnet_b0",
    "tf_efficientnet_lite0",
    "tf_efficientnetv2_b0",
    "mobilenetv2_050",
    "mobilenetv3_small_050",
    "mobilenetv4_conv_small",
    "mnasnet_small",
    "lcnet_050",
    "ghostnet_050",
    "rexnet_100",
    "convnext_atto",
    "convnextv2_atto",
    "inception_next_atto",
    "densenet121",
    "hrnet_w18_small",
    "dla34",
    "ese_vovnet19b_dw",
    "repvgg_a0",
    "fastvit_t8",
    "poolformer_s12",
    "edgenext_xx_small",
    "mobilevit_xxs",
    "mobilevitv2_050",
    "xcit_nano_12_p16_224",
    "pvt_v2_b0",
    "mambaout_femto",
    "vgg11",
    "vgg11_bn",
]
_TORCHVISION = [
    "resnet18",
    "resnext50_32x4d",
    "alexnet",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "mnasnet0_5",
    "regnet_y_400mf",
    "efficientnet_b0",
    "convnext_tiny",
    "densenet121",
    "vgg11",
    "vgg11_bn",
    "swin_t",
]
ARCHITECTURES = [
    *(Architecture(f"timm:{name}") for name in _TIMM),
    Architecture("timm:inception_v3", 96),
    Architecture("timm:levit_128s", 224),
    Architecture("timm:pit_ti_224", 224),
    Architecture("timm:mixer_s32_224", 224),
    _sized("timm:vit_tiny_patch16_224"),
    _sized("timm:deit_tiny_patch16_224"),
    _sized("timm:deit_tiny_distilled_patch16_224"),
    _sized("timm:cait_xxs24_224"),
    _sized("timm:eva02_tiny_patch14_224", 56),
    _sized("timm:swin_tiny_patch4_window7_224", window_size=4),
    _sized("timm:maxvit_nano_rw_256"),
    _sized("timm:coatnet_pico_rw_224"),
    *(Architecture(f"torchvision:{name}") for name in _TORCHVISION),
    Architecture("torchvision:googlenet", 64, {"aux_logits": False, "init_weights": False}),
    Architecture("torchvision:vit_b_16", 64, {"image_size": 64}),
]


@dataclass(frozen=True)
class Examined:
    """What was found out about a network."""

    cut: str
    plan: str
    engine: str
    reason: str

    def row(self, name: str) -> str:
        """Return a line of the table."""
        return f"| `{name}` | `{self.cut}` | {self.engine} | {self.reason or 'this is the fastest here'} |"


def build(architecture: Architecture) -> nn.Module:
    """Return the network with random weights and the normalisation of the library's own configuration."""
    torch.manual_seed(0)
    library, _, name = architecture.name.partition(":")
    if not architecture.options:
        network, stated = LIBRARIES[library](name, False, 10)
        assert stated is not None
        # Small images for speed, so the size that it states is left out.
        return sicl.Normalized(network, stated.mean, stated.std).eval()
    # Constructor options (a smaller image) are the tests' own business: `load_model` has none.
    timm = library == "timm"
    make = __import__("timm").create_model if timm else __import__("torchvision").models.get_model
    return sicl.Normalized(make(name, num_classes=10, **architecture.options), (0.5,) * 3, (0.5,) * 3).eval()


def images_of(architecture: Architecture, n: int) -> Tensor:
    """Return n random images of the size that the network is tried with."""
    generator = torch.Generator().manual_seed(n)
    return torch.rand(n, 3, architecture.size, architecture.size, generator=generator)


def versions() -> str:
    """Return which libraries the networks come from."""
    return ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("torch", "timm", "torchvision"))


def examine(architecture: Architecture) -> Examined:
    """Attach SICL, predict batches of eight and of one, and raise where a promise is broken."""
    model = build(architecture)
    trusted = sicl.SICL(variants=2, content_variants=2).attach(model)
    for n in (8, 1):
        images = images_of(architecture, n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            out = trusted(images)
        with torch.no_grad():
            torch.testing.assert_close(out.logits, model(images), rtol=1e-4, atol=1e-4)
        assert torch.isfinite(out.confidence).all()
        engine = trusted.calibration.engine
        assert engine.split.plan in ("thin", "wide"), f"{engine.split.plan} passes at batch {n}"
        if n == 8:
            found = Examined(str(engine.split.point), engine.split.plan, engine.name, engine.reason)
    return found
