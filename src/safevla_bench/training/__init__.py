"""Judged runs as training data: safety labels of every record, and datasets that LeRobot loads."""

from safevla_bench.training.export import DatasetSummary, export_dataset
from safevla_bench.training.labels import RecordLabels, label_records
from safevla_bench.training.pictures import CameraChoice

__all__ = ["CameraChoice", "DatasetSummary", "RecordLabels", "export_dataset", "label_records"]
