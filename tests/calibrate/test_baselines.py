"""The baselines are worth beating: each lowers the ECE of an adapting model on real images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sicl
from sicl.data import load_dataset, source_data
from sicl.metrics import expected_calibration_error


@pytest.mark.parametrize("corruption", ["gaussian_noise"])
def test_every_baseline_has_a_lower_ece_than_softmax_under_tent(corruption: str) -> None:
    """512 embedded images, severity 5; the docs have all 15 corruptions and 1,500 images."""
    dataset = load_dataset("demo", split="test")
    pixels = dataset.read(np.arange(512), corruption, severity=5)
    images = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2).float() / 255
    panel = sicl.Panel(
        {
            "softmax": sicl.Softmax(),
            "temperature_scaling": sicl.TemperatureScaling(),
            "mc_dropout": sicl.McDropout(passes=4),
            "transcal": sicl.TransCal(),
            "pseudocal": sicl.PseudoCal(),
        },
        sicl.Tent(predict="after").attach(sicl.load_model("demo")),
        source=source_data(load_dataset("demo", split="val")),
    )
    outputs = [panel(batch) for batch in images.split(64)]
    labels = torch.from_numpy(dataset.labels[:512])
    correct = torch.cat([out["softmax"].labels for out in outputs]) == labels
    ece = {
        name: expected_calibration_error(torch.cat([out[name].confidence for out in outputs]), correct)
        for name in outputs[0]
    }
    assert ece["softmax"] > 0.1
    for name, value in ece.items():
        assert name == "softmax" or value < ece["softmax"] - 0.02, ece
