"""`python -m mrc.perf` is mrc-perf."""

from mrc.cli.entry import perf

if __name__ == "__main__":
    perf()
