"""Gamma functions whose differences do not cancel, compiled."""

from __future__ import annotations

import math

from robustly._runtime.numba_loops import compiled

# Without smoothing a word that a topic lost has η → 0; here its gamma functions still have room below them.
LEAST_ETA = 1e-30


@compiled()
def psi_gap(x: float, n: float) -> float:
    """ψ(x + n) − ψ(x) for x > 0, n ≥ 0, without cancellation."""
    y = x + n
    gap = 0.0
    while x < 10.0:
        gap += n / (x * y)
        x += 1.0
        y += 1.0
    u = 1.0 / (x * x)
    v = 1.0 / (y * y)
    spread = n * (x + y) * u * v  # u - v
    gap += math.log1p(n / x) + 0.5 * n / (x * y)
    return gap + spread * (1 / 12 - (u + v) / 120 + (u * u + u * v + v * v) / 252 - (u + v) * (u * u + v * v) / 240)


@compiled()
def psi(x: float) -> float:
    """ψ(x) for x > 0."""
    shift = 0.0
    while x < 10.0:
        shift -= 1.0 / x
        x += 1.0
    u = 1.0 / (x * x)
    return shift + math.log(x) - 0.5 / x - u * (1 / 12 - u * (1 / 120 - u * (1 / 252 - u / 240)))


@compiled()
def log_rising(x, n):
    """log Γ(x + n) − log Γ(x) for x > 0, n ≥ 0, without cancellation when n is small beside x."""
    result = 0.0
    y = x + n
    while x < 12.0:
        result -= math.log1p(n / x)
        x += 1.0
        y += 1.0
    # Stirling's series at both ends, its differences taken term by term.
    ratio = math.log1p(n / x)
    u = 1.0 / (x * x)
    v = 1.0 / (y * y)
    gap = n / (x * y)  # 1/x - 1/y
    tail = gap * (-1 / 12 + (u + 1.0 / (x * y) + v) / 360)
    tail += (v * v / y - u * u / x) / 1260 - (v**3 / y - u**3 / x) / 1680 + (v**4 / y - u**4 / x) / 1188
    # undo the shift: Γ(x+n)/Γ(x) = [Γ(X+n)/Γ(X)] / ∏ (x_i+n)/x_i
    return result + (x - 0.5) * ratio + n * math.log(y) - n + tail


@compiled()
def length_terms(concentration, lengths):
    """Σ ψ(concentration + length) − ψ(concentration)."""
    total = 0.0
    for i in range(lengths.size):
        total += psi_gap(concentration, lengths[i])
    return total
