r"""How does the evidence of a row that may be from one of several parts change with its numbers, to second order?

With :math:`A_k` the log of a part's density times its share and :math:`p_k` its probability given the row,

.. math:: \nabla \ell = \sum_k p_k \nabla A_k, \qquad
          \nabla^2 \ell = \sum_k p_k [\nabla^2 A_k + (\nabla A_k - \nabla \ell)(\nabla A_k - \nabla \ell)^\top] .

Each part is a density of a few arguments of its own, whose derivatives it tells, and the arguments move with the row's numbers in a
stated way. Differentiating the whole row by row takes up to ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Rates = Mapping[int, Any]
"""How the arguments of a density move; those that are not told stay."""


class PartDensity(NamedTuple):
    """A log density with its slope and, above the diagonal, its curvature in what it is a function of."""

    value: Any
    slope: Sequence[Any]
    curve: Mapping[tuple[int, int], Any]

    def along(self, rates: Rates) -> Any:
        return sum(rate * self.slope[place] for place, rate in rates.items())

    def across(self, one: Rates, other: Rates, bend: Rates) -> Any:
        """The second derivative along two directions, which themselves may bend."""
        pairs = [(min(i, j), max(i, j), a * b) for i, a in one.items() for j, b in other.items()]
        return sum(rate * self.curve[i, j] for i, j, rate in pairs) + self.along(bend)


class RowPart(NamedTuple):
    """One of the places a row may be from."""

    density: PartDensity
    log_share: Any
    tilts: Mapping[str, tuple[Any, Any]]
    """By the name of a number, slope and second derivative of the log share in it."""
    moves: Mapping[str, Rates]
    """By the name of a number, how what the density is a function of moves with it."""
    bends: Mapping[tuple[str, str], Rates]


def log_shares(log_odds: Any) -> tuple[tuple[Any, tuple[Any, Any]], tuple[Any, tuple[Any, Any]]]:
    """Logarithms of a share and of what is left beside it, each with slope and second derivative in the log odds of the share."""
    share = jax.nn.sigmoid(log_odds)
    bend = -share * (1.0 - share)
    return (jax.nn.log_sigmoid(log_odds), (1.0 - share, bend)), (jax.nn.log_sigmoid(-log_odds), (-share, bend))


def moments_of_parts(names: Sequence[str], parts: Sequence[RowPart]) -> tuple[Any, Any, Any]:
    """The log of the sum of the parts, with its slope and curvature in the numbers of these names."""
    # A row that one part makes impossible must not stop the search.
    heights = [jnp.maximum(part.density.value + part.log_share, -1e300) for part in parts]
    top = jnp.max(jnp.stack(heights))
    # Far out the logarithm of their sum is lost in the rounding of the largest: shares are taken of the sum itself.
    shares = [jnp.exp(height - top) for height in heights]
    total = sum(shares)
    value, chances = top + jnp.log(total), [share / total for share in shares]
    expected = lambda terms: sum(jnp.where(chance > 0, chance * term, 0.0) for chance, term in zip(chances, terms))
    slopes = [
        [part.tilts.get(name, (0.0,))[0] + part.density.along(part.moves.get(name, {})) for name in names]
        for part in parts
    ]
    mean = [expected(along) for along in zip(*slopes)]
    curve = [[jnp.zeros(())] * len(names) for _ in names]
    for i, one in enumerate(names):
        for j, other in enumerate(names[i:], i):
            own = [
                part.density.across(
                    part.moves.get(one, {}), part.moves.get(other, {}), part.bends.get((one, other), {})
                )
                + (part.tilts[one][1] if one == other and one in part.tilts else 0.0)
                for part in parts
            ]
            apart = [(slope[i] - mean[i]) * (slope[j] - mean[j]) for slope in slopes]
            curve[i][j] = curve[j][i] = expected([a + b for a, b in zip(own, apart)])
    return value, jnp.stack(mean), jnp.stack([jnp.stack(line) for line in curve])
