"""SICL on a model nobody here wrote: a Hugging Face vision transformer (random weights, to run offline).

pip install "sicl[hf]" && python examples/own_model.py
"""

import torch
from transformers import ViTConfig, ViTForImageClassification

import sicl

config = ViTConfig(image_size=32, patch_size=4, hidden_size=64, num_hidden_layers=3, num_attention_heads=4)
config.num_labels = 10
model = ViTForImageClassification(config)  # use from_pretrained(...) for a trained one

trusted = sicl.SICL().attach(sicl.Tent(lr=1e-4).attach(model))
out = trusted(torch.rand(16, 3, 32, 32))
print("perturbed at:", trusted.calibration.engine.split.point)
print("labels:", out.labels.tolist())
print("confidence:", [round(c, 2) for c in out.confidence.tolist()])
