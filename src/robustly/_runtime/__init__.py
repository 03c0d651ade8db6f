"""How the package runs: double precision, numba kernels, memory given back, random keys."""
