"""Watch a stream in TensorBoard: estimated accuracy, mean confidence, classes in use, what each question counts.

pip install "sicl[tensorboard]" && python examples/tensorboard_stream.py && tensorboard --logdir sicl-tensorboard
"""

import sicl
from sicl.data import load_dataset
from sicl.monitor import TensorBoard
from sicl.streams import Benign

try:
    board = TensorBoard("sicl-tensorboard")
except sicl.SiclError as error:
    print(error)
    raise SystemExit(0) from None

trusted = sicl.SICL().attach(sicl.Tent().attach(sicl.load_model("demo")))
with board:
    watched = sicl.Monitor().attach(trusted, observers=[board], name="fog")
    for batch in Benign(corruption="fog", n=64, batch_size=16).open(load_dataset("demo")):
        out = watched(batch.images)
        board.add(out, name="fog")
        print(f"{watched.seen} images: estimated accuracy {watched.estimate.accuracy:.2f}")
