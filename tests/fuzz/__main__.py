"""Fuzzing by grammar: near-valid records and run folders.

python -m tests.fuzz                    # the long mode: 20,000 cases
python -m tests.fuzz --from 5000 --cases 100 --kind run
python -m tests.fuzz --kind parquet --cases 5000    # files of a format, with bytes changed
python -m tests.fuzz --case 4711        # one case here, with its traceback
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import driver


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N")
    parser.add_argument("--case", type=int, metavar="N")
    parser.add_argument("--kind", choices=sorted(driver.kinds()))
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(driver.run_case(arguments.case, arguments.kind))
        return 0
    outcome = driver.run_cases(range(arguments.first, arguments.first + arguments.cases), arguments.kind)
    print(outcome)
    return bool(outcome.failures)


if __name__ == "__main__":
    sys.exit(main())
