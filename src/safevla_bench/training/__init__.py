"""Judged runs as training data: safety labels of every record, preference pairs, and datasets that LeRobot loads."""
