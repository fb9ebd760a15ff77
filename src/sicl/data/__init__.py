"""Clean and corrupted image data sets, their published layouts, and where to get them."""

from sicl.data.dataset import CLEAN, CorruptedImages, Dataset, source_data
from sicl.data.files import data_root
from sicl.data.images import Images
from sicl.data.load import DATASETS, load_dataset

__all__ = [
    "CLEAN",
    "DATASETS",
    "CorruptedImages",
    "Dataset",
    "Images",
    "data_root",
    "load_dataset",
    "source_data",
]
