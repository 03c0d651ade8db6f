"""Multinomial logit with categories that may be wrong: scikit-learn's manners, formulas, and the fit as every other model has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from robustly._runtime.estimator import as_before_if_stopped, with_parameters
from robustly._runtime.late_bases import Classifier
from robustly._runtime.random_keys import generator
from robustly._runtime.settings import check_real, check_whole
from robustly.errors import DataError, ModelError, PersistError
from robustly.fit.draws import Draws, independence, regular_covariance
from robustly.fit.objective import Optimum
from robustly.fit.outcome import Stop, warn_unless_converged
from robustly.glm.base import GLMEstimator
from robustly.glm.categories import CategoryEvidence, FittedCategories, find_categories
from robustly.glm.families import Family
from robustly.glm.read_arrays import check_fitted, one_column, refuse_measurements, refuse_no_response
from robustly.model.linear import Design
from robustly.model.read_design import Given
from robustly.result.estimates import Hyperparameters
from robustly.result.fit import Fit
from robustly.result.laws import RowLaw
from robustly.result.outliers import Judgement
from robustly.result.saved import fields_of
from robustly.result.source import Source
from robustly.rows.anywhere import as_stored
from robustly.rows.labels import RowLabels, as_numbers

Array = np.ndarray
LOCAL = ("label", None)


class CategoryPredictive(RowLaw):
    """The categories of a set of rows, numbered in the order of `classes`."""

    def __init__(self, probabilities: Array, classes: Any) -> None:
        self.probabilities, self.classes = probabilities, np.asarray(classes)

    def __len__(self) -> int:
        return len(self.probabilities)

    def _refuse(self) -> Any:
        raise ModelError("categories without an order have no mean and no quantiles; read .probabilities.")

    def _quantile_at(self, level: float) -> Array:
        return self._refuse()

    @property
    def mean(self) -> Array:
        return self._refuse()

    @property
    def sd(self) -> Array:
        return self._refuse()

    def log_prob(self, *observations: Any) -> Array:
        """Log probability of one category a row."""
        at = codes_of(observations[0], self.classes)
        return np.log(self.probabilities[np.arange(len(self)), at])

    def sample(self, num_samples: int = 1000, *, key: Any) -> Array:
        """Categories (draw, row)."""
        below = np.cumsum(self.probabilities, axis=1)[:, :-1]
        return self.classes[(generator(key).random((num_samples, len(self), 1)) > below).sum(axis=-1)]


@dataclass(frozen=True, eq=False)
class CategoryModel:
    """What predicts: the fitted categories, as a fit holds them."""

    fitted: FittedCategories
    kind: ClassVar[str] = "glm_categories"

    @property
    def shown(self) -> dict[str, Any]:
        """What can be read off the fit itself."""
        return {"fitted": self.fitted, "formula": self.fitted.formula, "classes": np.asarray(self.fitted.classes)}

    def columns_by_term(self) -> dict[str, list[int]]:
        """A column's coefficients of all classes are tested together."""
        width, others = len(self.fitted.columns), len(self.fitted.classes) - 1
        return {term: [k * width + place for k in range(others)] for place, term in enumerate(self.fitted.columns)}

    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CategoryPredictive:
        (rows,) = args
        if self.fitted.formula is not None:
            rows = self.fitted.formula.matrix_of(rows)[0]
        matrix = rows if hasattr(rows, "tocsr") else np.asarray(rows, dtype=float)
        wanted = len(self.fitted.columns) - int(self.fitted.intercept)
        if matrix.ndim != 2 or matrix.shape[1] != wanted:
            raise DataError(f"the model was fitted with {wanted} columns; got an array of shape {matrix.shape}.")
        return CategoryPredictive(self.fitted.probabilities(matrix, **kwargs), self.fitted.classes)

    def to_saved(self) -> tuple[dict[str, Any], dict[str, Array]]:
        from robustly.glm.formula_saved import formula_to_json

        fitted = self.fitted
        about = {
            "classes": [one.item() if isinstance(one, np.generic) else one for one in fitted.classes],
            "columns": list(fitted.columns),
            "intercept": fitted.intercept,
            "local": fitted.local,
            "flip": fitted.flip,
            "formula": None if fitted.formula is None else formula_to_json(fitted.formula),
        }
        return about, {"coefficients": fitted.coefficients}

    def fields(self) -> dict[str, Any]:
        """What the model says of itself, as fields of a :class:`Fit`."""
        fitted = self.fitted
        others, base = fitted.classes[1:], fitted.classes[0]
        terms = [f"{one}: {term}" for one in others for term in fitted.columns]
        flips = fitted.local is not None and fitted.flip > 0
        told = {"local": None if fitted.local is None else "categories may be wrong"}
        return {
            "model": self,
            "terms": terms,
            "hyperparameters": Hyperparameters({"label": {"flip": fitted.flip}} if flips else {}),
            "shared": {"flip": fitted.flip} if flips else {},
            "derived": {"spread": None, "dof": None, "scale": None, "flip": fitted.flip if fitted.local else None},
            "scales": ["real"] * len(terms) + ["logit"] * flips,
            "asked": {"local": fitted.local, "prior": "normal"},
            "told": {"family": f"multinomial; odds to {base!r}", **{k: v for k, v in told.items() if v}},
        }


class CategorySource(Source):
    """The rows behind a fit of categories."""

    def __init__(self, evidence: CategoryEvidence, optimum: Optimum, turn: Array, response: str, classes: Any) -> None:
        self.rows, self.optimum, self.turn, self.response, self.classes = evidence, optimum, turn, response, classes

    def evidence(self) -> Array:
        return self.rows.evidence(self.optimum.vector)

    def scores(self) -> Array:
        return self.rows.scores(self.optimum.vector)

    def evidence_at(self, vectors: Array) -> Array:
        return np.stack([self.rows.evidence(vector) for vector in vectors])

    def tail_probabilities(self) -> Array:
        """Of categories at most as probable as the row's own, all together."""
        by_class, flip = self.rows.split(self.optimum.vector)
        fitted = FittedCategories(by_class, flip, self.classes, (), False, None)
        chance = fitted.probabilities(self.rows.turned)
        own = chance[np.arange(len(chance)), self.rows.codes]
        return np.minimum(1.0, np.where(chance <= own[:, None] * (1.0 + 1e-12), chance, 0.0).sum(axis=1))

    def judge(self) -> Judgement | None:
        if not self.rows.flips:
            return None
        wrong = 1.0 - self.rows.right(self.optimum.vector)
        flip = self.rows.split(self.optimum.vector)[1]
        law = "categories that may be wrong, by Bayes' rule"
        return Judgement(wrong, None, flip, law, {law: 1.0})

    def loo(self) -> Array:
        """One Newton step to the fit without each row, and the row's evidence there."""
        inverse = regular_covariance(self.optimum.curve)
        moved = self.scores() @ inverse * self.rows.weight[:, None]
        each = []
        for row, step in enumerate(moved):
            one = CategoryEvidence(
                self.rows.turned[row : row + 1],
                self.rows.codes[row : row + 1],
                np.ones(1),
                self.rows.classes,
                0.0 * self.rows.penalty,
                self.rows.flips,
            )
            # Without the row the curvature is less by its own, which a step with all rows' curvature would not know.
            own = one(self.optimum.vector)[2] * self.rows.weight[row]
            corrected = np.linalg.solve(np.eye(len(step)) + inverse @ own, step)
            each.append(one.evidence(self.optimum.vector - corrected)[0])
        return np.array(each)

    def natural_by_name(self, vectors: Array) -> dict[str, Array]:
        size, others = self.rows.size, self.rows.classes - 1
        inner = vectors[..., : size * others].reshape(*vectors.shape[:-1], others, size) @ self.turn.T
        found = {"coefficients": inner}
        return {**found, "flip": 1.0 / (1.0 + np.exp(-vectors[..., -1]))} if self.rows.flips else found

    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Draws:
        """Draws under a flat prior of the coefficients (or what holds them) and of the share of wrong categories."""
        at, half = self.optimum.vector, np.linalg.cholesky(regular_covariance(self.optimum.curve))

        def density(vector: Array) -> float:
            volume = -np.logaddexp(0.0, -vector[-1]) - np.logaddexp(0.0, vector[-1]) if self.rows.flips else 0.0
            return float(self.rows.weight @ self.rows.evidence(vector)) + self.rows.log_prior(vector) + volume

        target = lambda white: np.array([density(at + half @ one) for one in white])
        white, _ = independence(target, len(at), generator(key), num_samples, num_chains)
        vectors = at + white @ half.T
        return Draws(self.natural_by_name(vectors), vectors, 0)

    def posterior(self, site: str | None) -> Any:
        raise ModelError("what a row has of its own is whether its category is wrong: outlier_probability has it.")

    def has_posterior(self, site: str) -> bool:
        return False

    def observed(self) -> dict[str, Array]:
        return {self.response: self.rows.codes}

    def replicates(self, vectors: Array, rng: np.random.Generator) -> dict[str, Array]:
        drawn = []
        for vector in vectors:
            by_class, flip = self.rows.split(vector)
            chance = FittedCategories(by_class, flip, self.classes, (), False, None).probabilities(self.rows.turned)
            drawn.append((rng.random((len(chance), 1)) > np.cumsum(chance, axis=1)[:, :-1]).sum(axis=1))
        return {self.response: np.stack(drawn)}


def fit_categories(
    design: Design,
    classes: Sequence[Any],
    *,
    local: str | None = "label",
    tol: float = 1e-8,
    max_iter: int = 100,
    labels: RowLabels | None = None,
    formula: Any = None,
    response: str = "y",
) -> Fit:
    """Fit a multinomial logit to a design whose response numbers the `classes` from 0."""
    if local not in LOCAL:
        raise ModelError(f'local of categories is "label" or None; got {local!r}.')
    check_real("tol", tol, "a number above 0", 0.0, ends=False)
    check_whole("max_iter", max_iter, 1)
    evidence, found, notes = find_categories(design, len(classes), local, Stop(tol, max_iter))
    by_class, flip = evidence.split(found.vector)
    coefficients = by_class @ design.to_coefficients.T
    fitted = FittedCategories(coefficients, flip, tuple(classes), tuple(design.terms), design.intercept, local, formula)
    fields = CategoryModel(fitted).fields()
    values = [*coefficients.ravel(), *([flip] if evidence.flips else [])]
    names = [*fields["terms"], *(["flip"] if evidence.flips else [])]
    jacobian = np.zeros((len(values), len(found.vector)))
    width = len(found.vector) - evidence.flips
    jacobian[: coefficients.size, :width] = np.kron(np.eye(len(classes) - 1), design.to_coefficients)
    if evidence.flips:
        jacobian[-1, -1] = flip * (1.0 - flip)
    fit = Fit(
        parameters=dict(zip(names, values)),
        labels=names,
        vector=found.vector,
        jacobian=jacobian,
        curve=found.curve,
        objective=found.value,
        evidence_by_row=evidence.evidence(found.vector),
        weight=design.rows.weight,
        outcome=found.outcome,
        history=found.history,
        notes=(*design.notes, *notes),
        source=CategorySource(evidence, found, design.to_coefficients, response, tuple(classes)),
        row_labels=labels or RowLabels(),
        aliased=np.tile(design.aliased, len(classes) - 1),
        **fields,
    )
    warn_unless_converged(fit.outcome)
    return fit


def from_saved(meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> Fit:
    """A fit as :meth:`Fit.save` wrote it."""
    from robustly.glm.formula_saved import formula_from_json

    formula = formula_from_json(meta["formula"]) if meta.get("formula") else None
    told = (meta["classes"], meta["columns"], meta["intercept"], meta["local"])
    fitted = FittedCategories(
        arrays["coefficients"], float(meta["flip"]), tuple(told[0]), tuple(told[1]), bool(told[2]), told[3], formula
    )
    if arrays["coefficients"].shape != (len(fitted.classes) - 1, len(fitted.columns)):
        raise PersistError("the coefficients in the file are not by class and term. Save the fit again.")
    return Fit(**{**fields_of(meta, arrays), **CategoryModel(fitted).fields()})


def codes_of(y: Any, classes: Array) -> Array:
    """The place of each category among the classes."""
    y = np.asarray(y)
    found = np.clip(np.searchsorted(classes, y), 0, len(classes) - 1)
    wrong = np.flatnonzero(classes[found] != y)
    if wrong.size:
        raise DataError(
            f"y holds {y[wrong[0]]!r} in row {wrong[0]}, which is none of the fitted classes {classes.tolist()}."
        )
    return found


@with_parameters
class RobustMultinomialRegression(Classifier, GLMEstimator):
    r"""Multinomial logit in which every row's category may be wrong, with a fitted probability.

    :math:`p(y_i = k) = \mathrm{flip}/K + (1 - \mathrm{flip})\, \mathrm{softmax}(x_i W)_k`: three classes or more without an order, the
    first of the sorted ones being the base. It resists wrong categories far from the boundary between classes, which pull the
    classical coefficients to zero. For two classes `RobustLogisticRegression` has more to choose from, for ordered ones
    :class:`~robustly.glm.ordered.Ordinal`.

    Args:
        local: ``"label"``, or None for the classical model.
        fit_intercept, alpha, tol, max_iter, na_action: as in :class:`RobustLinearRegression`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(400, 2)) * 3
        >>> y = np.array(["a", "b", "c"])[np.argmax(X @ [[0, 1, -1], [0, 1, 1]] + rng.gumbel(size=(400, 3)), axis=1)]
        >>> y[:30] = "a"
        >>> model = RobustMultinomialRegression().fit(X, y)
        >>> model.coef_.shape, bool(0.02 < model.flip_ < 0.2)
        ((2, 2), True)
    """

    local: str | None = "label"

    def _family(self) -> Family:
        raise ModelError("categories without an order have no family of one predictor a row.")

    @as_before_if_stopped
    def fit(self, X: Any, y: Any, sample_weight: Given = None) -> Self:
        """Fit to rows `X` (n, d) and categories `y`; `sample_weight` says how often each row counts."""
        refuse_no_response(y)
        if as_stored(X) is not None:
            raise DataError("categories are fitted to rows in memory. Read the columns, or a sample of them.")
        matrix, beside, labels = self._rows(X, as_numbers(y, "y"), sample_weight, None, None, None)
        y = one_column(matrix, np.asarray(beside["y"]))
        if y.dtype.kind == "f" and not np.all(np.isfinite(y)):
            row = int(np.flatnonzero(~np.isfinite(y))[0])
            raise DataError(f"y holds {'NaN' if np.isnan(y[row]) else 'inf'} in row {row}. Drop or fill these rows.")
        refuse_measurements(y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise DataError(f"y holds one class only, {classes[0]!r}; two are needed to tell them apart (1 class).")
        design = self._read(matrix, codes.astype(float), beside["sample_weight"], None, None, None)
        self.result_ = fit_categories(
            design, classes.tolist(), local=self.local, tol=self.tol, max_iter=self.max_iter, labels=labels
        )
        self.classes_, fitted = classes, self.result_.fitted  # type: ignore[attr-defined]
        self.n_iter_ = max(1, len(self.result_.history))
        first = int(fitted.intercept)
        self.coef_ = fitted.coefficients[:, first:]
        self.intercept_ = fitted.coefficients[:, 0] if first else np.zeros(len(classes) - 1)
        self.flip_ = fitted.flip
        return self

    def predict_dist(self, X: Any) -> CategoryPredictive:  # type: ignore[override]
        """Probabilities of the categories as recorded, by row, with their log probabilities and draws."""
        check_fitted(self)
        fitted = self.result_.fitted  # type: ignore[attr-defined]
        return CategoryPredictive(fitted.probabilities(self._matrix(X)), self.classes_)

    def predict_proba(self, X: Any, kind: str = "mean") -> Array:
        """Probabilities of the classes: as recorded (``"mean"``), or of the truth (``"typical"``)."""
        if kind not in ("mean", "typical"):
            raise ModelError(f'kind is "mean" or "typical"; got {kind!r}.')
        check_fitted(self)
        return self.result_.fitted.probabilities(self._matrix(X), kind)  # type: ignore[attr-defined]

    def predict(self, X: Any) -> Array:
        """The most probable class."""
        chance = self.predict_proba(X)
        return self.classes_[np.argmax(chance, axis=1)]

    def surprise(self, X: Any, y: Any) -> Array:  # type: ignore[override]
        """Minus the log probability of every row's category: large for rows that do not belong."""
        return -self.predict_dist(X).log_prob(y)

    def save(self, path: Any) -> None:
        """Not kept as an estimator; the fit is, with its predictions."""
        raise PersistError("keep model.result_.save(path); rb.load(path).predictive(X).probabilities predicts again.")


def categories_by_formula(
    formula: str, data: Any, *, read: Any, local: Any, tol: float, max_iter: int, **given: Any
) -> Fit:
    """A multinomial logit by formula; `read` is what reads formulas, and `given` what goes along with the rows."""
    from robustly.glm.formula_frames import as_pandas

    frame, name = as_pandas(data), formula.split("~")[0].strip().strip("`")
    if name not in frame.columns:
        raise ModelError(f'the response of a multinomial model is one column of categories; got "{name}".')
    there = frame[name].notna().to_numpy()
    classes, codes = np.unique(frame[name].to_numpy()[there].astype(object).astype(str), return_inverse=True)
    if len(classes) < 2:
        raise DataError(f'"{name}" holds {len(classes)} classes; two or more are needed to tell them apart.')
    numbers = np.full(len(frame), np.nan)
    numbers[there] = codes
    rows = read(formula, frame.assign(**{name: numbers}), "normal", **given)
    if rows.groups is not None or np.any(rows.design.offset != 0):
        raise ModelError("a multinomial model takes neither groups nor offsets: each class has a predictor of its own.")
    return fit_categories(
        rows.design,
        classes.tolist(),
        local="label" if local == "auto" else local,
        tol=tol,
        max_iter=max_iter,
        labels=rows.labels,
        formula=rows.columns,
        response=name,
    )
