"""A deterministic simulator: unmodified endpoints on a virtual clock and a virtual network.

    python -m mrc.sim --seed 7

See `mrc/sim/README.md`.
"""
