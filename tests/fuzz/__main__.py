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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=LONG)
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N")
    parser.add_argument("--case", type=int, metavar="N")
    parser.add_argument("--kind", choices=sorted(driver.kinds()))
    parser.add_argument("--worker", type=int, nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        driver.work(chosen.worker, chosen.kind)
        return 0
    if chosen.case is not None:
        print(driver.run_case(chosen.case, chosen.kind))
        return 0
    numbers = range(chosen.first, chosen.first + chosen.cases)
    print(f"cases {numbers.start} to {numbers.stop - 1}")
    outcome = driver.run_cases(numbers, chosen.kind, lambda line: print(line, file=sys.stderr))
    print(outcome)
    return bool(outcome.failures)


if __name__ == "__main__":
    sys.exit(main())
