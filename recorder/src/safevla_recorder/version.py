"""The version of safevla-recorder and safevla-bench; it stands here and nowhere else."""

__version__ = "0.1.0"
