"""The version of safevla-recorder and safevla-bench, defined only here."""

__version__ = "0.1.0"
