"""How names, numbers and the users' own text are written in a report, the same in every format."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from sicl.bench.tables.printed import CORRUPTIONS

MISSING = "\N{EN DASH}"
CALIBRATOR_NAMES = {
    "softmax": "Softmax",
    "temperature_scaling": "Temperature scaling",
    "mc_dropout": "MC dropout",
    "transcal": "TransCal",
    "pseudocal": "PseudoCal",
    "sicl_paper": "SICL (as printed)",
    "sicl": "SICL",
}
SHORT_CALIBRATORS = {"temperature_scaling": "Temp. scaling", "sicl_paper": "SICL (printed)"}
PARTS = {
    "style": "Style noise",
    "content": "Content noise",
    "mixstyle": "MixStyle",
    "dropout": "Dropout",
    "style votes": "Style votes",
    "content votes": "Content votes",
    "mean only": "Mean only",
    "std only": "Deviation only",
    "layer1": "Stage 1",
    "layer2": "Stage 2",
    "layer3": "Stage 3",
    "layer4": "Stage 4",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
}
"""Perturbations and parts of a calibrator, in the legends of figures."""
METHODS = {
    "source": "Source",
    "batchnorm": "BatchNorm",
    "tent": "TENT",
    "eata": "EATA",
    "sar": "SAR",
    "rotta": "RoTTA",
    "sotta": "SoTTA",
    "come": "COME",
    "sar+come": "SAR with COME",
    "deyo": "DeYO",
    "cotta": "CoTTA",
    "roid": "ROID",
    "lame": "LAME",
    "sotta+sicl": "SoTTA with SICL",
}
DATASETS = {
    "cifar10-c": "CIFAR-10-C",
    "cifar100-c": "CIFAR-100-C",
    "imagenet-c": "ImageNet-C",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
    "demo": "Demo",
}
MODELS = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "resnet101": "ResNet-101",
    "vit": "ViT",
    "vit_tiny": "ViT-Tiny",
}
STREAMS = {name: name.capitalize() for name in ("benign", "dynamic", "noisy", "continual", "mixed")}
SHORT = ("Gauss", "Shot", "Impulse", "Defocus", "Glass", "Motion", "Zoom", "Snow", "Frost", "Fog")
SHORT_DOMAINS = dict(zip(CORRUPTIONS, (*SHORT, "Bright", "Contrast", "Elastic", "Pixelate", "JPEG")))


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of a report: its key in a record, how to write it, and which way is better."""

    key: str
    title: str
    help: str
    percent: bool = True
    higher: bool = False

    def text(self, value: float | None) -> str:
        """Return the number as printed, a dash for a missing one."""
        if value is None:
            return MISSING
        return f"{100 * value:.1f}" if self.percent else f"{value:.3f}"

    @property
    def unit(self) -> str:
        """Return " %" for shares, nothing for other numbers."""
        return " %" if self.percent else ""

    @property
    def arrow(self) -> str:
        """Return which way is better."""
        return "↑" if self.higher else "↓"


METRICS = {
    metric.key: metric
    for metric in (
        Metric("ece", "ECE", "expected calibration error over the whole stream, 15 equal-width bins"),
        Metric(
            "cumulative_ece",
            "Cumulative ECE",
            "at every batch the ECE of all seen so far, averaged over batches",
        ),
        Metric("ece_mass", "ECE, equal mass", "expected calibration error with 15 equal-mass bins"),
        Metric("mce", "MCE", "the largest gap of any of the 15 bins"),
        Metric("brier", "Brier", "mean squared distance of confidence and correctness", percent=False),
        Metric("nll", "NLL", "binary cross-entropy of correctness in nats, clipped at 1e-7", percent=False),
        Metric(
            "auroc", "AUROC", "chance that a right prediction is more confident than a wrong one", higher=True
        ),
        Metric("aurc", "AURC", "area under the risk-coverage curve"),
        Metric("ece_right", "ECE of the right", "one minus the mean confidence of right predictions"),
        Metric("ece_wrong", "ECE of the wrong", "mean confidence of wrong predictions"),
        Metric(
            "ood_auroc",
            "OOD AUROC",
            "chance that a known sample is more confident than an OOD one",
            higher=True,
        ),
    )
}


def calibrator_name(key: str) -> str:
    """Return how a calibrator is written."""
    return CALIBRATOR_NAMES.get(key, _title(key))


def legend_name(key: str) -> str:
    """Return how a calibrator, a method, a part of one or a corruption is written in a figure."""
    known = {**SHORT_DOMAINS, **PARTS, **METHODS, **CALIBRATOR_NAMES}
    first, comma, rest = key.partition(", ")
    return known.get(key, f"{known.get(first, first)}{comma}{rest}")


def short_calibrator(key: str) -> str:
    """Return how a calibrator is written where there is little room."""
    return SHORT_CALIBRATORS.get(key, calibrator_name(key))


def method_name(key: str) -> str:
    """Return how a method is written."""
    return METHODS.get(key, _title(key))


def dataset_name(key: str) -> str:
    """Return how a data set is written."""
    return DATASETS.get(key, key)


def model_name(key: str) -> str:
    """Return how a model is written."""
    return MODELS.get(key, key)


def stream_name(key: str) -> str:
    """Return how a stream is written."""
    return STREAMS.get(key, key)


def domain_name(key: str) -> str:
    """Return how a corruption or other domain is written in full."""
    return _title(key).replace("Jpeg", "JPEG")


def short_domain(key: str) -> str:
    """Return how a corruption is written at the head of a narrow column."""
    return SHORT_DOMAINS.get(key, domain_name(key))


def ordered(keys: set[str], known: tuple[str, ...] | dict[str, str]) -> list[str]:
    """Return the keys in the order of `known`, then the others by name."""
    return sorted(keys, key=lambda key: rank(key, known))


def rank(key: str, known: tuple[str, ...] | dict[str, str]) -> tuple[int, str]:
    """Return what sorts a key: its place in `known`, and its name where it has none."""
    order = list(known)
    return order.index(key) if key in order else len(order), key


def _title(key: str) -> str:
    return key.replace("_", " ").capitalize()


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\N{EN DASH}": "--",
    "·": "--",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def tex_text(text: str) -> str:
    """Return text as LaTeX prints it."""
    return "".join(_TEX.get(letter, letter) for letter in _one_line(text))


def csv_text(text: str | None) -> str | None:
    """Return text as a spreadsheet shows it: with an apostrophe before what it would compute."""
    return f"'{text}" if text is not None and text.lstrip().startswith(_FORMULA) else text


def markdown_text(text: str) -> str:
    """Return text as Markdown shows it, in a table's cell too."""
    # An underscore inside a word is one already.
    escaped = re.sub(r"([\\`*\[\]|~$#!]|(?<!\w)_|_(?!\w))", r"\\\1", _one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def pipe_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Container[int] = ()) -> str:
    """Return a Markdown table of cells that are Markdown already; the columns of `right` are aligned right."""
    rule = ["---:" if i in right else "---" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def _one_line(text: str) -> str:
    return " ".join(text.split())
