"""One file for each area of the package; every file defines COMPARISONS, and `benchmarks.declare.discover` finds it."""
