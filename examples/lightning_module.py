"""A trusted classifier inside Lightning's predict loop.

pip install sicl lightning && python examples/lightning_module.py
"""

import torch

import sicl

try:
    import lightning
except ImportError:
    print("This example needs lightning: pip install lightning")
    raise SystemExit(0) from None


class Trusted(lightning.LightningModule):
    """Predicts labels and confidences; adapts while it predicts, so batches must come in order."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.trusted = None

    def on_predict_start(self):
        # After Lightning has moved the model to its device.
        self.trusted = sicl.SICL().attach(sicl.Tent().attach(self.model))

    def predict_step(self, batch, _index):
        # TENT needs gradients; Lightning predicts in inference mode unless told otherwise.
        out = self.trusted(batch)
        return out.labels, out.confidence


loader = torch.utils.data.DataLoader(torch.rand(32, 3, 32, 32), batch_size=16)
trainer = lightning.Trainer(
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    inference_mode=False,
    accelerator="cpu",
)
for labels, confidence in trainer.predict(Trusted(sicl.load_model("demo")), loader):
    print(len(labels), "predictions, mean confidence", round(float(confidence.mean()), 2))
