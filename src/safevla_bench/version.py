"""The version of this package, which is that of the recorder inside it."""

from safevla_recorder.version import __version__ as __version__
