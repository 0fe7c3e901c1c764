"""`python -m safevla_bench.demo FILE` records the shipped archive anew."""

import sys
from pathlib import Path

from safevla_bench.demo.recording import make

make(Path(sys.argv[1]))
