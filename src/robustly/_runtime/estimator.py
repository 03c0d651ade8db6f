"""How does an estimator state its parameters? As annotated names with defaults."""

from dataclasses import dataclass

# scikit-learn reads parameters off the signature of __init__ and wants each kept as it came, which is what a dataclass does.
with_parameters = dataclass(kw_only=True, eq=False, repr=False)
