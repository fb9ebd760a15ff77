"""Confidence you can act on, in three lines, on the embedded model and images.

python examples/three_lines.py
"""

import sicl
from sicl.data import load_dataset
from sicl.streams import Benign

model = sicl.load_model("demo")  # any nn.Module that returns logits, or an object with .logits
stream = Benign(corruption="gaussian_noise", n=512).open(load_dataset("demo"))

adapted = sicl.Tent().attach(model)  # adapts a private copy
trusted = sicl.SICL().attach(adapted)  # or .attach(model): no adaptation

right = confident = confident_right = total = 0
for batch in stream:
    out = trusted(batch.images)  # adapts, predicts, calibrates
    correct = out.labels == batch.labels
    keep = out.accept(0.8)
    total += len(batch)
    right += int(correct.sum())
    confident += int(keep.sum())
    confident_right += int((correct & keep).sum())

print(f"accuracy on everything: {right / total:.1%}")
print(
    f"accuracy where confidence >= 0.8: {confident_right / max(confident, 1):.1%} ({confident / total:.0%} kept)"
)
