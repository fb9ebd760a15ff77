"""`sicl doctor`: what is installed, what it can run on, and what is missing."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from typing import Annotated, Optional

import typer

EXTRAS = {
    "ray": ("ray", "run benchmarks on a cluster"),
    "timm": ("timm", 'load_model("timm:NAME")'),
    "torchvision": ("torchvision", 'load_model("torchvision:NAME")'),
    "transformers": ("hf", 'load_model("hf:NAME")'),
    "prometheus-client": ("prometheus", "a monitor's events as metrics"),
    "fastapi": ("serve", "examples/serve.py"),
    "torchmetrics": ("metrics", "use sicl.metrics.torchmetrics"),
    "pandas": ("pandas", "use sicl.results.frame"),
}
_MODEL = "A model as load_model takes it; say how it is prepared, where it is cut and which engine runs."
CORE = ("torch", "numpy", "scipy", "safetensors", "pillow", "rich", "typer")


def doctor(
    model: Annotated[Optional[str], typer.Option(help=_MODEL)] = None,  # noqa: UP045
    arch: Annotated[Optional[str], typer.Option(help="The architecture of a checkpoint.")] = None,  # noqa: UP045
    method: Annotated[str, typer.Option(help="The adaptation method to attach below SICL.")] = "source",
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Show versions, devices and extras; with --model, how a model is prepared and which engine runs."""
    if model is not None:
        typer.echo(_about(model, arch, method, device))
        return
    _about_the_installation()


def _about(name: str, arch: str | None, method: str, device: str) -> str:
    import torch

    import sicl
    from sicl.adapt import METHODS
    from sicl.errors import require_choice
    from sicl.models.preprocess import preprocess_of
    from sicl.models.zoo import count_classes

    require_choice(METHODS, method=method)
    model = sicl.load_model(name, arch=arch, device=device)
    preprocess = preprocess_of(model)
    trusted = sicl.SICL().attach(METHODS[method]().attach(model))
    side = 32 if preprocess is None else preprocess.size
    images = torch.rand(8, 3, side, side, generator=torch.Generator().manual_seed(0)).to(device)
    out = trusted(images)
    finite = "finite" if bool(torch.isfinite(out.confidence).all()) else "NOT finite: please report this"
    weights = sum(parameter.numel() for parameter in model.parameters())
    lines = [
        f"{name}: {type(getattr(model, 'model', model)).__name__}, {weights / 1e6:.1f} M parameters, "
        f"{count_classes(model)} classes",
        f"pictures: {preprocess or 'not stated by the model'}",
        trusted.explain(),
        f"confidences of a batch of 8 random images are {finite}",
    ]
    return "\n".join(lines)


def _about_the_installation() -> None:
    import torch
    from rich.table import Table

    import sicl
    from sicl.bench.run.live import make_console

    console = make_console()
    table = Table(title="sicl doctor", title_justify="left", show_header=False, box=None)
    table.add_row("sicl", sicl.__version__)
    table.add_row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in CORE:
        table.add_row(package, importlib.metadata.version(package))
    table.add_row("CPU threads", str(torch.get_num_threads()))
    table.add_row("GPU", _gpus())
    for package, (extra, purpose) in EXTRAS.items():
        table.add_row(package, _extra(package, extra, purpose))
    console.print(table)
    if not _works():
        typer.echo("sicl: the embedded model failed its self-test; reinstall the package.", err=True)
        raise typer.Exit(1)
    console.print("self-test: the embedded model runs and SICL attaches to it. All is well.")


def _gpus() -> str:
    from torch import cuda

    names = [cuda.get_device_name(i) for i in range(cuda.device_count())] if cuda.is_available() else []
    return ", ".join(names) or "none found; everything runs on the CPU"


def _extra(package: str, extra: str, purpose: str) -> str:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed (pip install 'sicl[{extra}]' to {purpose})"
    try:
        importlib.import_module(package.replace("-", "_"))
    except Exception as error:  # a broken install must be reported, whatever it raises
        return f"{version}, but importing it fails: {type(error).__name__}"
    return version


def _works() -> bool:
    import torch

    import sicl

    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    out = sicl.SICL(variants=2, content_variants=2).attach(sicl.load_model("demo"))(images)
    return bool(torch.isfinite(out.confidence).all())
