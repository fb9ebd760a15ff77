"""Watch a stream in TensorBoard: estimated accuracy, share accepted, number of classes predicted.

pip install "sicl[tensorboard]" && python examples/tensorboard_stream.py && tensorboard --logdir sicl-tensorboard
"""

import sicl
from sicl.data import load_dataset
from sicl.streams import Benign

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    print("This example needs tensorboard: pip install 'sicl[tensorboard]'")
    raise SystemExit(0) from None


def log(writer, step, out, threshold=0.8):
    """Write one batch's prediction; needs no labels."""
    writer.add_scalar("sicl/estimated_accuracy", float(out.confidence.mean()), step)
    writer.add_scalar("sicl/accepted", float(out.accept(threshold).float().mean()), step)
    writer.add_scalar("sicl/classes", len(out.labels.unique()), step)
    writer.add_histogram("sicl/confidence", out.confidence, step)


trusted = sicl.SICL(variants=4, content_variants=4).attach(sicl.Tent().attach(sicl.load_model("demo")))
with SummaryWriter("sicl-tensorboard") as writer:
    for step, batch in enumerate(Benign(corruption="fog", n=64, batch_size=16).open(load_dataset("demo"))):
        out = trusted(batch.images)
        log(writer, step, out)
        print(f"batch {step}: estimated accuracy {float(out.confidence.mean()):.2f}")
