"""Trustworthy confidence in a Hugging Face pipeline: labels as before, the score is SICL's (random weights, offline).

pip install "sicl[hf]" && python examples/hf_pipeline.py
"""

import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

import sicl

config = ViTConfig(image_size=32, patch_size=8, hidden_size=64, num_hidden_layers=3, num_attention_heads=4)
config.num_labels = 10
network = ViTForImageClassification(config).eval()  # use from_pretrained(...), or load_model("hf:NAME")
model = sicl.Normalized(network, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
preprocess = sicl.Preprocess(size=32, interpolation="bicubic", fit="squash")
trusted = sicl.SICL(variants=4, content_variants=4).attach(model)


def classify(pictures):
    """Return what `pipeline("image-classification")` returns: a label and a score for each picture."""
    out = trusted(torch.stack([preprocess(picture) for picture in pictures]))
    return [
        {"label": config.id2label[int(label)], "score": float(confidence)}
        for label, confidence in zip(out.labels, out.confidence)
    ]


for answer in classify([Image.effect_noise((80, 60), sigma) for sigma in (10, 60, 200)]):
    print(answer["label"], round(answer["score"], 2))
