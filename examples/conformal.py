"""Prediction sets with a guarantee: the calibrated vector handed to a conformal library (MAPIE).

pip install mapie && python examples/conformal.py

Without MAPIE the sets of `out.sets` are shown alone: they hold as far as the calibration does.
"""

import numpy as np
import torch

import sicl
from sicl.data import load_dataset
from sicl.streams import Benign

trusted = sicl.PseudoCal().attach(sicl.Tent().attach(sicl.load_model("demo")))
vectors, labels, covered, size = [], [], [], []
for batch in Benign(corruption="gaussian_noise", severity=3, n=512).open(load_dataset("demo")):
    out = trusted(batch.images)
    sets = out.sets(coverage=0.9)  # N x C, from calibrated confidence alone
    covered.append(sets.gather(1, batch.labels.unsqueeze(1)).squeeze(1))
    size.append(sets.sum(dim=1))
    vectors.append(out.probabilities)  # N x C, sums to 1, its largest entry is the confidence
    labels.append(batch.labels)
vectors, labels = torch.cat(vectors).numpy(), torch.cat(labels).numpy()
covered, size = torch.cat(covered).float(), torch.cat(size).float()
print(f"sicl sets at 90 %: {covered.mean():.1%} covered, {size.mean():.2f} classes on average")


class Given:
    """A classifier whose "features" are the probabilities themselves, in scikit-learn's manner."""

    classes_ = np.arange(vectors.shape[1])
    n_features_in_ = vectors.shape[1]

    def fit(self, x: np.ndarray, y: np.ndarray) -> "Given":
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return x / x.sum(axis=1, keepdims=True)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x.argmax(axis=1)

    def __sklearn_is_fitted__(self) -> bool:
        return True


try:
    from mapie.classification import SplitConformalClassifier
except ImportError:
    print("MAPIE is not installed; `pip install mapie` adds sets whose coverage labelled samples guarantee.")
else:
    half = len(labels) // 2
    conformal = SplitConformalClassifier(Given(), confidence_level=0.9, conformity_score="lac", prefit=True)
    conformal.conformalize(vectors[:half].astype(np.float64), labels[:half])
    _, found = conformal.predict_set(vectors[half:].astype(np.float64))
    held = found[np.arange(len(labels) - half), labels[half:], 0].mean()
    print(
        f"MAPIE sets at 90 %: {held:.1%} covered, {found[:, :, 0].sum(axis=1).mean():.2f} classes on average"
    )
