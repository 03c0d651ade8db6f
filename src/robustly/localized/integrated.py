"""A hierarchical model that is already there, fitted by its marginal likelihood: its groups' own values are integrated out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from robustly.approx import Approximation
from robustly.errors import LocalizeError
from robustly.localized.model import Localized, localize


def integrate(
    model: Callable[..., Any],
    sites: str | Sequence[str],
    *,
    rows: str | Sequence[str] | None = None,
    plate: str | None = None,
    approx: Approximation | None = None,
) -> Localized:
    r"""A hierarchical model as it is, fitted by its marginal likelihood: the groups' own values are integrated out.

    For models that have a value for every group already (``with plate("groups", J): a = sample("a", …)``, then ``a[group]``).
    Each group is a unit whose value is integrated under the prior that the model states, :math:`\prod_j \int p(a_j \mid \mu,
    \tau) \prod_{i \in j} p(y_i \mid a_j)\,da_j`, and all other sites, the prior's own among them, get estimates. Which value a
    row sees is found from the model. To have constants in the prior fitted as well: ``localize(model, "a", by="group")``.

    Args:
        model: a NumPyro model in which every row sees one value of each site.
        sites: the site, or sites, with one value for every group; they must go by the same groups.
        rows, plate, approx: as in :func:`localize`.
    """
    found = localize(model, sites, rows, plate=plate, approx=approx)
    if not isinstance(found, Localized):
        raise LocalizeError("integrate is for NumPyro models; the steps of a series are integrated by localize.")
    return Localized(replace(found.request, as_written=True), approx)
