"""Models that several tests build."""

from statsmodels.tsa.statespace.structural import UnobservedComponents


def local_level(values, **options):
    return UnobservedComponents(values, level="llevel", use_exact_diffuse=True, **options)
