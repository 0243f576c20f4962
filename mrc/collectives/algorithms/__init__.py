"""The algorithms that come with the package; importing this makes them known by name."""

from mrc.collectives.algorithms import chain, direct, doubling, pairwise, ring, tree

__all__ = ["chain", "direct", "doubling", "pairwise", "ring", "tree"]
