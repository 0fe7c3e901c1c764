"""`python -m safevla_bench.demo FILE [EPISODE...]` records the shipped archive, or some of its episodes, anew.

OpenBLAS chooses its kernels by the processor, and their last digits differ; robosuite's controller multiplies by them.
They are fixed here, before NumPy is imported, so that every x86-64 machine of this decade records the same bytes.
"""

import os
import sys
from pathlib import Path

os.environ["OPENBLAS_CORETYPE"] = "Haswell"

from safevla_bench.demo.recording import record_archive

record_archive(Path(sys.argv[1]), sys.argv[2:])
