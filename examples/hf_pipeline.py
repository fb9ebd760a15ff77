"""Trustworthy confidence in a Hugging Face pipeline: labels as before, the score is SICL's (random weights, offline).

pip install "sicl[hf]" && python examples/hf_pipeline.py
"""

import transformers
from PIL import Image

import sicl

config = transformers.ViTConfig(
    image_size=32, patch_size=8, hidden_size=64, num_hidden_layers=3, num_labels=10
)
config.num_attention_heads = 4
network = transformers.ViTForImageClassification(config).eval()  # use from_pretrained(...)
# Of version 5, the processor that needs no torchvision.
Processor = getattr(transformers, "ViTImageProcessorPil", transformers.ViTImageProcessor)
# The pipeline's processor leaves images in [0, 1]; `Normalized` does the rest inside of the network.
processor = Processor(size={"height": 32, "width": 32}, do_normalize=False)
model = sicl.Normalized(network, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
trusted = sicl.SICL().attach(model)


class Trusted(transformers.ImageClassificationPipeline):
    """An image classification pipeline whose score is a calibrated confidence."""

    def _forward(self, model_inputs):
        return trusted(model_inputs["pixel_values"])

    def postprocess(self, out, **_):
        """Return the label and its score."""
        return {"label": config.id2label[int(out.labels[0])], "score": float(out.confidence[0])}


classify = transformers.pipeline(
    "image-classification", model=network, image_processor=processor, pipeline_class=Trusted
)
pictures = [Image.effect_noise((80, 60), sigma).convert("RGB") for sigma in (10, 60, 200)]
for answer in classify(pictures):
    print(answer["label"], round(answer["score"], 2))
