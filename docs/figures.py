"""Draw the figures of the concept pages: `make figures`. Data are the embedded model and images; about a minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import sicl
from sicl.data import load_dataset
from sicl.metrics import reliability_bins
from sicl.streams import Dynamic
from sicl.streams.picture import draw

FOLDER = Path(__file__).parent / "images" / "concepts"
COLOURS = ("#4051b5", "#e8710a", "#0b8043", "#9aa0a6")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 300, 60, 30, 50


def _svg(body: str, height: int = HEIGHT) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13"><rect width="{WIDTH}" height="{height}" fill="white"/>{body}</svg>\n'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", fill: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{text}</text>'


def _frame(x_label: str, y_label: str, names: Sequence[str]) -> str:
    right, base = WIDTH - 20, HEIGHT - BOTTOM
    parts = [f'<path d="M{LEFT} {TOP}V{base}H{right}" fill="none" stroke="#999"/>']
    parts += [_text(LEFT - 8, _y(v) + 4, f"{v:g}", "end") for v in (0, 0.25, 0.5, 0.75, 1)]
    parts += [_text((LEFT + right) / 2, HEIGHT - 12, x_label), _text(8, 18, y_label, "start")]
    x = right - 8.0
    for colour, name in reversed([*zip(COLOURS, names)] if len(names) > 1 else []):
        parts.append(_text(x, 18, name, "end", colour))
        x -= 7.5 * len(name) + 14
    return "".join(parts)


def _y(value: float) -> float:
    return HEIGHT - BOTTOM - value * (HEIGHT - BOTTOM - TOP)


def lines(series: Mapping[str, Sequence[float]], x_label: str, y_label: str) -> str:
    """Draw values in [0, 1] over their position."""
    body = _frame(x_label, y_label, list(series))
    for colour, values in zip(COLOURS, series.values()):
        step = (WIDTH - 30 - LEFT) / max(1, len(values) - 1)
        points = " ".join(f"{LEFT + 5 + i * step:.1f},{_y(v):.1f}" for i, v in enumerate(values))
        body += f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
    return _svg(body)


def bars(groups: Mapping[str, Sequence[float]], ticks: Sequence[str], x_label: str, y_label: str) -> str:
    """Draw groups of bars beside each other, values in [0, 1]."""
    body = _frame(x_label, y_label, list(groups))
    slot = (WIDTH - 30 - LEFT) / len(ticks)
    width = 0.8 * slot / len(groups)
    for g, (colour, values) in enumerate(zip(COLOURS, groups.values())):
        for i, value in enumerate(values):
            x = LEFT + 5 + i * slot + 0.1 * slot + g * width
            body += (
                f'<rect x="{x:.1f}" y="{_y(value):.1f}" width="{width:.1f}" '
                f'height="{_y(0) - _y(value):.1f}" fill="{colour}"/>'
            )
    for i, tick in enumerate(ticks):
        body += _text(LEFT + 5 + (i + 0.5) * slot, HEIGHT - BOTTOM + 16, tick)
    return _svg(body)


def flow(boxes: Sequence[tuple[str, str]]) -> str:
    """Draw boxes with arrows between them, each with a note below."""
    width, gap = 130, 30
    body = '<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    body += '<path d="M0 0L8 4L0 8z" fill="#666"/></marker></defs>'
    for i, (title, note) in enumerate(boxes):
        x = 15 + i * (width + gap)
        body += f'<rect x="{x}" y="40" width="{width}" height="50" rx="6" fill="#e8eaf6" stroke="#4051b5"/>'
        body += _text(x + width / 2, 70, title) + _text(x + width / 2, 115, note, fill="#666")
        if i:
            body += (
                f'<path d="M{x - gap + 2} 65H{x - 3}" stroke="#666" stroke-width="1.5" marker-end="url(#a)"/>'
            )
    return _svg(body, 140)


def corrupted(name: str, n: int = 512, severity: int = 5) -> tuple[Tensor, Tensor]:
    """Return embedded images under one corruption, and their labels."""
    data = load_dataset("demo").subset(np.arange(n))
    pixels = torch.from_numpy(np.ascontiguousarray(data.read(np.arange(n), name, severity=severity)))
    return pixels.permute(0, 3, 1, 2).float() / 255, torch.from_numpy(data.labels)


def run(panel: sicl.Panel, images: Tensor) -> dict[str, dict[str, Tensor]]:
    """Return labels, confidence and signals of a stream, joined over its batches."""
    outs = [panel(batch) for batch in images.split(64)]
    joined: dict[str, dict[str, Tensor]] = {}
    for name in outs[0]:
        predictions = [out[name] for out in outs]
        joined[name] = {"labels": torch.cat([p.labels for p in predictions])}
        joined[name]["confidence"] = torch.cat([p.confidence for p in predictions])
        for signal, value in predictions[0].signals.items():
            if value.ndim == 1:
                joined[name][signal] = torch.cat([p.signals[signal] for p in predictions])
    return joined


def _panel() -> sicl.Panel:
    adapted = sicl.Tent().attach(sicl.load_model("demo"))
    return sicl.Panel({"softmax": sicl.Softmax(), "SICL": sicl.SICL()}, adapted)


def _shares(values: Tensor, n_bins: int = 10) -> list[float]:
    counts = torch.histc(values.clamp(0, 1 - 1e-6), n_bins, 0, 1)
    return (counts / counts.sum().clamp(min=1)).tolist()


def measured_figures() -> dict[str, str]:
    """Style invariance of right and wrong predictions, and reliability, of one run."""
    images, labels = corrupted("contrast")
    out = run(_panel(), images)
    right = out["SICL"]["labels"] == labels
    style = out["SICL"]["style_invariance"]
    edges = [f"{i / 10:.1f}" for i in range(10)]
    bins = {
        name: reliability_bins(out[name]["confidence"], out[name]["labels"] == labels, n_bins=10)
        for name in out
    }
    accuracy = {name: torch.nan_to_num(b.accuracy.float()).tolist() for name, b in bins.items()}
    return {
        "style-invariance": bars(
            {"right predictions": _shares(style[right]), "wrong predictions": _shares(style[~right])},
            edges,
            "probability of the predicted class after a change of style",
            "share of predictions",
        ),
        "metrics": bars(accuracy, edges, "confidence", "share that is right"),
    }


def adapters() -> str:
    """Accuracy over a stream, with and without adaptation."""
    images, labels = corrupted("contrast", 1024)
    series: dict[str, list[float]] = {}
    for name, method in (("Source", sicl.Source()), ("TENT", sicl.Tent())):
        adapted = method.attach(sicl.load_model("demo"))
        right = [
            float((adapted(b).argmax(1) == y).float().mean())
            for b, y in zip(images.split(128), labels.split(128))
        ]
        series[name] = right
    return lines(series, "batch of 128 under the corruption contrast", "accuracy")


def _gaps(model: nn.Module, names: Sequence[str], images: Tensor) -> list[float]:
    gaps: list[float] = []

    def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        gap = args[0].mean((0, 2, 3)) - module.running_mean
        gaps.append(float((gap.abs() / module.running_var.sqrt()).mean().clamp(max=1)))

    handles = [model.get_submodule(name).register_forward_pre_hook(note) for name in names]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return gaps


def statistics() -> str:
    """How far batch means lie from running means, in running deviations, by layer."""
    model = sicl.load_model("demo")
    names = [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)][::4]
    groups = {name: _gaps(model, names, corrupted(name, 256)[0]) for name in ("clean", "contrast")}
    return bars(groups, names, "batch-norm layer", "distance of batch from running means (deviations)")


def main() -> None:
    """Write all figures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    plan = Dynamic(gamma=0.1, slots=15, per_corruption=100, seed=0).plan(load_dataset("demo"))
    boxes = [("images", "once"), ("prefix", "once"), ("variants", "n of them"), ("suffix", "n at a time")]
    figures = {
        **measured_figures(),
        "adapters": adapters(),
        "statistics": statistics(),
        "streams": draw(plan, title="gamma 0.1, 15 slots", batch_size=64),
        "engine": flow(boxes),
    }
    for name, svg in figures.items():
        (FOLDER / f"{name}.svg").write_text(svg)


if __name__ == "__main__":
    main()
