"""Fuzzing by grammar: near-valid records, archives, specifications, registries, formulas, replies and run folders.

python -m tests.fuzz                    # the long mode: 20,000 cases
python -m tests.fuzz --cases 1000       # what `make test` runs
python -m tests.fuzz --from 5000 --cases 100 --kind reply
python -m tests.fuzz --case 4711        # one case here, with its traceback
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import driver

LONG = 20_000


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--cases", type=int, default=LONG)
    asked.add_argument("--from", dest="first", type=int, default=0, metavar="N")
    asked.add_argument("--case", type=int, metavar="N")
    asked.add_argument("--kind", choices=sorted(driver.kinds()))
    asked.add_argument("--worker", type=int, nargs="+", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.worker:
        driver.work(given.worker, given.kind)
        return 0
    if given.case is not None:
        print(driver.one(given.case, given.kind))
        return 0
    numbers = range(given.first, given.first + given.cases)
    print(f"cases {numbers.start} to {numbers.stop - 1}")
    found = driver.cases(numbers, given.kind, lambda line: print(line, file=sys.stderr))
    print(found)
    return bool(found.failures)


if __name__ == "__main__":
    sys.exit(main())
