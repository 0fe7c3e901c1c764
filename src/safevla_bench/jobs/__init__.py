"""What a command does from start to end: evaluation, verification, diagnosis, browsing, the demo."""
