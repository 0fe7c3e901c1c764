"""The version of this package, which equals the version of the recorder."""

from safevla_recorder.version import __version__ as __version__
