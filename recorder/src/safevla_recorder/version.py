"""The version of this distribution, equal to that of safevla-bench."""

__version__ = "0.1.0"
