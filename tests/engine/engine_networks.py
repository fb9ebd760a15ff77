"""Small networks that are hard to cut in one way each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sicl.models.cifar import resnet18, resnet50
from sicl.models.vit import VisionTransformer


class Functional(nn.Module):
    """Plain code around its children: one relu before and after the cut, sizes read from the input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.body = nn.Conv2d(6, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        x = self.relu(self.bn1(self.stem(x * 2 - 1)))
        x = self.relu(self.bn2(self.body(x)))
        logits: Tensor = self.fc(x.view(n, 8, -1).mean(-1))
        return logits


class Skipping(Functional):
    """A skip connection runs from the images past every layer, so it cannot be resumed."""

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x.mean(dim=(1, 2, 3), keepdim=True)
        x = self.relu(self.bn1(self.stem(x)))
        x = self.relu(self.bn2(self.body(x))) + 1e-4 * shortcut
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class OutputWithLogits(nn.Module):
    """Returns an object with `.logits`, as Hugging Face models do."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> object:
        return type("Output", (), {"logits": self.network(x)})()


class Positions(nn.Module):
    """Adds a learned table that a module before the cut makes and the code after it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.conv = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        table = self.table(x)
        x = self.norm(self.conv(x)) * table
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class Table(nn.Module):
    """One learned row, whatever the images are."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.linspace(0.5, 1.5, 4).view(1, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.row.expand(len(x), -1, -1, -1)


def vgg() -> nn.Sequential:
    """A flat VGG-like sequence with batch norms."""
    features = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def vit() -> VisionTransformer:
    """A ViT with timm's names, three blocks deep."""
    return VisionTransformer(
        image_size=16, patch=4, dim=12, depth=3, n_heads=2, n_classes=5, mean=(0.5,) * 3, std=(0.3,) * 3
    )


def hf_resnet() -> nn.Module:
    """A tiny Hugging Face ResNet, random weights."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 6, 8, 8], depths=[1, 1, 1, 1], layer_type="basic", num_labels=5
    )
    return ResNetForImageClassification(config)


def hf_vit() -> nn.Module:
    """A tiny Hugging Face ViT, random weights."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=12,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=16,
        patch_size=4,
        num_labels=5,
    )
    return ViTForImageClassification(config)


NETWORKS = {
    "resnet18": lambda: resnet18(width=4, n_classes=5),
    "resnet50": lambda: resnet50(width=4, n_classes=5),
    "vit": vit,
    "vgg": vgg,
    "functional": Functional,
    "output": lambda: OutputWithLogits(resnet18(width=4, n_classes=5)),
    "positions": Positions,
}


def build(name: str, *, seed: int = 0) -> nn.Module:
    """Return a network with random weights and non-trivial norm statistics, in eval mode."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = {**NETWORKS, "hf_resnet": hf_resnet, "hf_vit": hf_vit, "skipping": Skipping}[name]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0.0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.0, 0.1)
    torch.random.set_rng_state(state)
    return model.eval()


def images(n: int = 6, *, size: int = 16, seed: int = 0) -> Tensor:
    """Return random images in [0, 1]."""
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))
