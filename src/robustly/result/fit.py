"""What did a fit find? One result for every model: estimates, their uncertainty, rows, predictions, and how it ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from robustly._runtime.keys import jax_key
from robustly.errors import FitError, IdentifiabilityWarning, ModelError, names
from robustly.fit.outcome import Outcome
from robustly.result import persist
from robustly.result.outliers import benjamini_hochberg


class Source(Protocol):
    """What can still be asked of the rows and the model behind a fit; a fit read from a file has none."""

    def scores(self) -> np.ndarray: ...

    def posterior(self, site: str) -> Any: ...

    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...

    def tail_probabilities(self) -> np.ndarray: ...

    def integration_error(self) -> float: ...

    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Any: ...

    def evidence_at(self, vectors: np.ndarray) -> np.ndarray: ...


@dataclass(eq=False)
class Fit:
    """The fitted model.

    Estimates are in `hyperparameters` (by site and argument), `shared` (by site) and `parameters` (all, by name);
    `evidence` holds log p(row) for every row, integrated over the row's own value.
    """

    parameters: dict[str, np.ndarray]
    labels: list[str]
    vector: np.ndarray
    jacobian: np.ndarray
    """d natural values / d vector."""
    curve: np.ndarray
    """Second derivative of the objective in the vector."""
    objective: float
    evidence_by_row: np.ndarray | None = field(repr=False)
    """What `evidence` holds; None until asked for, as a search that is sure of its last step does not look there."""
    weight: np.ndarray
    outcome: Outcome
    history: list[dict[str, Any]] = field(repr=False)
    approximation: str = "Exact()"
    is_bound: bool = False
    notes: tuple[str, ...] = ()
    limits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """At a boundary: what the localized sites' arguments tend to."""
    scales: list[str] = field(default_factory=list)
    """On which scale intervals are symmetric, for each of `labels`: ``real``, ``log``, ``logit`` or ``mixed``."""
    scored: np.ndarray | None = field(default=None, repr=False)
    source: Source | None = field(default=None, repr=False)
    saved: dict[str, Any] = field(default_factory=dict, repr=False)
    summed_evidence: float | None = None
    """The log likelihood, where it is known before `evidence` is."""

    # ------------------------------------------------------------------ estimates

    @cached_property
    def hyperparameters(self) -> dict[str, dict[str, Any]]:
        """Fitted arguments of every localized site's prior."""
        return {**_nested(self.parameters), **self.limits}

    @cached_property
    def shared(self) -> dict[str, Any]:
        """Point estimates of what all rows have in common."""
        return {name: value for name, value in self.parameters.items() if "." not in name}

    @cached_property
    def evidence(self) -> np.ndarray:
        """log p(row) for every row, integrated over the row's own value."""
        if self.evidence_by_row is None:
            return self._need("evidence").evidence()  # type: ignore[attr-defined]
        return self.evidence_by_row

    @property
    def log_likelihood(self) -> float:
        """The sum of the rows' evidences."""
        return float(self.weight @ self.evidence) if self.summed_evidence is None else self.summed_evidence

    @property
    def aic(self) -> float:
        return -2.0 * self.log_likelihood + 2.0 * len(self.vector)

    @property
    def bic(self) -> float:
        return -2.0 * self.log_likelihood + float(np.log(self.weight.sum())) * len(self.vector)

    # ------------------------------------------------------------------ uncertainty

    def covariance(self, kind: str = "information") -> np.ndarray:
        """Covariance of the natural values, in the order of `labels`.

        ``"information"`` inverts the observed information of the evidence; ``"sandwich"`` is also right when the model
        is not, as far as the estimates still mean something.
        """
        return self.jacobian @ self._free_covariance(kind) @ self.jacobian.T

    def _free_covariance(self, kind: str) -> np.ndarray:
        if kind not in ("information", "sandwich"):
            raise ModelError(f'covariance takes "information" or "sandwich"; "{kind}" came.')
        bread = self._inverse_information
        if kind == "information" or not bread.size:
            return bread
        scores = self._need("scores").scores() if self.scored is None else self.scored
        return bread @ ((scores * self.weight[:, None]).T @ scores) @ bread

    @cached_property
    def _inverse_information(self) -> np.ndarray:
        if not self.vector.size:
            return np.zeros((0, 0))
        unit = 1.0 / np.sqrt(np.maximum(np.abs(np.diag(self.curve)), 1e-300))
        values, vectors = np.linalg.eigh(-self.curve * unit[:, None] * unit)
        if values.min() <= 1e-11 * max(values.max(), 1e-300):
            import warnings

            loose = np.abs(vectors[:, 0]) > 0.3
            labels = self._free_labels
            which = names(np.asarray(labels)[loose]) if len(labels) == len(loose) else "some parameters"
            warnings.warn(
                f"the data do not tell {which} apart, so their standard errors are not defined (NaN). "
                "Fix one of them or give it a hyperprior.",
                IdentifiabilityWarning,
                stacklevel=4,
            )
            return np.full_like(self.curve, np.nan)
        return (unit[:, None] * vectors / values) @ (vectors.T * unit)

    @property
    def _free_labels(self) -> list[str]:
        """Names for the entries of the vector, where they are not those of the natural values."""
        return self.labels

    @cached_property
    def standard_errors(self) -> dict[str, Any]:
        """Standard errors from the observed information, by site; for localized sites by argument."""
        return self._by_name(np.sqrt(np.maximum(np.diag(self.covariance()), 0.0)))

    def confint(self, level: float = 0.95, kind: str = "information") -> dict[str, tuple[Any, Any]]:
        """Intervals for every natural value, by label.

        Constrained values (a scale, a probability) get theirs on the unconstrained scale, so they stay inside it.
        """
        from scipy.special import expit, logit
        from scipy.stats import norm

        reach = norm.ppf(0.5 + level / 2)
        error = np.sqrt(np.maximum(np.diag(self.covariance(kind)), 0.0))
        found = {}
        for label, value, se, scale in zip(self.labels, self.estimates, error, self.scales):
            if scale == "log":
                ends = value * np.exp(-reach * se / value), value * np.exp(reach * se / value)
            elif scale == "logit":
                half = reach * se / (value * (1.0 - value))
                ends = expit(logit(value) - half), expit(logit(value) + half)
            else:
                ends = value - reach * se, value + reach * se
            found[label] = float(ends[0]), float(ends[1])
        return found

    @property
    def estimates(self) -> np.ndarray:
        """All natural values end to end, in the order of `labels`."""
        return np.concatenate([np.reshape(v, -1) for v in self.parameters.values()]) if self.parameters else np.zeros(0)

    def _by_name(self, flat: np.ndarray) -> dict[str, Any]:
        found, place = {}, 0
        for name, value in self.parameters.items():
            size = int(np.size(value))
            found[name] = flat[place : place + size].reshape(np.shape(value))[()]
            place += size
        return {**found, **_nested(found)}

    # ------------------------------------------------------------------ rows

    @property
    def surprise(self) -> np.ndarray:
        """Minus the log predictive density of every row: large for rows that do not belong."""
        return -self.evidence

    def outliers(self, fdr: float | None = None, level: float | None = None) -> np.ndarray:
        """Rows that do not belong, most surprising first.

        Each row's two-sided tail probability under its own integrated predictive is compared with all others
        (Benjamini & Hochberg 1995): among the rows returned, about a share `fdr` (0.05 unless told) is there by chance
        if the fitted model holds for the rest. With `level` instead, each row is judged alone.
        """
        tail = self.tail_probabilities
        if level is not None:
            chosen = np.flatnonzero(tail < level)
        else:
            chosen = benjamini_hochberg(tail, 0.05 if fdr is None else fdr)
        return chosen[np.lexsort((-self.surprise[chosen], tail[chosen]))]

    @cached_property
    def tail_probabilities(self) -> np.ndarray:
        """For every row, how probable a value at least as far out in its predictive distribution is."""
        if "tail_probabilities" in self.saved:
            return self.saved["tail_probabilities"]
        return self._need("outliers").tail_probabilities()

    def posterior(self, site: str | None = None) -> Any:
        """What is believed of each row's own value: ``mean``, ``sd``, ``quantile(level)``, arrays by row."""
        sites = list(self.hyperparameters)
        if site is None:
            if len(sites) != 1:
                raise ModelError(f"this fit has {names(sites)} localized; say which: posterior(site).")
            site = sites[0]
        if site in self.saved.get("posteriors", {}):
            return self.saved["posteriors"][site]
        if site in self.limits:
            raise ModelError(
                f'the rows show no heterogeneity in "{site}": all share the value {self.shared.get(site)}. '
                "It stands in fit.shared; there is no posterior by row."
            )
        return self._need("posterior").posterior(site)

    def predictive(self, *args: Any, **kwargs: Any) -> Any:
        """The integrated predictive distribution of new rows: call it like the model, without the observations."""
        return self._need("predictive").predictive(args, kwargs)

    def integration_error(self) -> float:
        """How much the log likelihood changes when every row is integrated with twice the points, in nats."""
        return self._need("integration_error").integration_error()

    def sample_posterior(self, num_samples: int, key: Any, *, num_warmup: int = 100, num_chains: int = 1) -> Any:
        """Draws of hyperparameters and shared values from their posterior, every row's own value integrated out.

        A Metropolis chain with independent proposals around the estimate, in a fraction of NUTS's time, where the
        posterior is close enough to normal for it; NUTS, with `num_warmup` steps to find its stride, where it is not.
        """
        return self._need("sample_posterior").sample_posterior(num_samples, jax_key(key), num_warmup, num_chains)

    def _need(self, what: str) -> Source:
        if self.source is None:
            raise FitError(
                f"{what} needs the model this fit was made with. Read it with rb.load(path, model=...), "
                "or keep the fit in memory."
            )
        return self.source

    # ------------------------------------------------------------------ telling

    def summary(self) -> Any:
        """A table of estimates with standard errors and intervals, and how the fit ended; prints as text or HTML."""
        from robustly.report.summary import summarize

        return summarize(self)

    def __repr__(self) -> str:
        return f"<Fit of {len(self.weight)} rows, log likelihood {self.log_likelihood:.4f}, {self.outcome.kind}>"

    def to_arviz(self, draws: Any = None, *, num_samples: int = 500, seed: int = 0) -> Any:
        """For ArviZ: posterior draws and the integrated log likelihood of every row at each of them.

        An ``InferenceData``, or with ArviZ 1 and later the ``DataTree`` that took its place. Pass what ``sample_posterior``
        gave; without it, draws come from the normal approximation at the estimate.
        """
        from robustly.fit.draws import to_inference_data

        return to_inference_data(self, draws, num_samples, seed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all numbers of the fit to one file; read it with ``rb.load``."""
        arrays = {
            "vector": self.vector,
            "jacobian": self.jacobian,
            "curve": self.curve,
            "evidence": self.evidence,
            "weight": self.weight,
            **{f"parameter:{name}": np.asarray(value) for name, value in self.parameters.items()},
        }
        posteriors = {}
        if self.source is not None:
            arrays["scored"] = self._free_scores()
            for site in self.hyperparameters:
                if site not in self.limits and self.source.has_posterior(site):  # type: ignore[attr-defined]
                    posteriors[site] = self.posterior(site)
            # Simulated tail probabilities take long; they are kept if they were asked for.
            if "tail_probabilities" in self.__dict__ or self.source.has_closed_tails():  # type: ignore[attr-defined]
                arrays["tail_probabilities"] = self.tail_probabilities
        else:
            posteriors = self.saved.get("posteriors", {})
            if self.scored is not None:
                arrays["scored"] = self.scored
            if "tail_probabilities" in self.saved:
                arrays["tail_probabilities"] = self.saved["tail_probabilities"]
        for site, posterior in posteriors.items():
            for part, array in posterior.arrays().items():
                arrays[f"posterior:{site}:{part}"] = array
        meta = {
            "labels": self.labels,
            "parameters": list(self.parameters),
            "objective": self.objective,
            "outcome": [self.outcome.kind, self.outcome.text, self.outcome.steps],
            "history": self.history,
            "approximation": self.approximation,
            "is_bound": self.is_bound,
            "notes": list(self.notes),
            "limits": {s: {a: np.asarray(v).tolist() for a, v in given.items()} for s, given in self.limits.items()},
            "scales": self.scales,
            "call": self.source.describe() if self.source is not None else self.saved.get("call"),  # type: ignore[attr-defined]
        }
        persist.write(path, "fit", meta, arrays)

    def _free_scores(self) -> np.ndarray:
        return self.scored if self.scored is not None else self._need("scores").scores()


def _nested(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """``{"b.scale": 1}`` as ``{"b": {"scale": 1}}``."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        if "." in name:
            site, _, argument = name.rpartition(".")
            found.setdefault(site, {})[argument] = value
    return found


@dataclass(frozen=True, eq=False)
class RowPosterior:
    """What is believed of each row's own value after the row was seen."""

    mean: np.ndarray
    sd: np.ndarray
    levels: np.ndarray = field(repr=False)
    quantiles: np.ndarray = field(repr=False)
    """By row, then by number of the local value, then by level."""

    def quantile(self, level: Any) -> np.ndarray:
        """Quantiles by row, interpolated between the levels that were computed."""
        wanted = np.atleast_1d(np.asarray(level, dtype=float))
        if np.any((wanted < self.levels[0]) | (wanted > self.levels[-1])):
            raise ModelError(f"posterior quantiles are kept from {self.levels[0]} to {self.levels[-1]}; {level} came.")
        # Interpolating in the normal quantile of the level keeps tails from being cut straight across.
        from scipy.special import ndtri

        known, asked = ndtri(self.levels), ndtri(wanted)
        right = np.clip(np.searchsorted(known, asked), 1, len(known) - 1)
        share = (asked - known[right - 1]) / (known[right] - known[right - 1])
        found = self.quantiles[..., right - 1] * (1 - share) + self.quantiles[..., right] * share
        return found[..., 0] if np.ndim(level) == 0 else found

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The central interval of the given probability, by row."""
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"mean": self.mean, "sd": self.sd, "levels": self.levels, "quantiles": self.quantiles}


def from_saved(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], model: Any = None) -> Fit:
    """A fit as :meth:`Fit.save` wrote it; with the program it was made from, it can predict again."""
    posteriors: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        if name.startswith("posterior:"):
            site, _, part = name.removeprefix("posterior:").rpartition(":")
            posteriors.setdefault(site, {})[part] = array
    saved: dict[str, Any] = {
        "posteriors": {site: RowPosterior(**parts) for site, parts in posteriors.items()},
        "call": meta["call"],
    }
    if "tail_probabilities" in arrays:
        saved["tail_probabilities"] = arrays["tail_probabilities"]
    fit = Fit(
        parameters={name: arrays[f"parameter:{name}"][()] for name in meta["parameters"]},
        labels=list(meta["labels"]),
        vector=arrays["vector"],
        jacobian=arrays["jacobian"],
        curve=arrays["curve"],
        objective=meta["objective"],
        evidence_by_row=arrays["evidence"],
        weight=arrays["weight"],
        outcome=Outcome(*meta["outcome"]),
        history=meta["history"],
        approximation=meta["approximation"],
        is_bound=meta["is_bound"],
        notes=tuple(meta["notes"]),
        limits={s: {a: np.asarray(v)[()] for a, v in given.items()} for s, given in meta["limits"].items()},
        scales=list(meta["scales"]),
        scored=arrays.get("scored"),
        saved=saved,
    )
    if model is not None:
        from robustly.localized.model import reattach

        fit.source = reattach(fit, model, meta["call"])
    return fit
