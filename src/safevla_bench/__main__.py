"""`python -m safevla_bench` is the command `safevla`."""

from safevla_bench.cli import main

if __name__ == "__main__":
    main()
