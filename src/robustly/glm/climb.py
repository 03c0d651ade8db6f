r"""How is the summed evidence climbed? The objective that Newton steps see, one pass over the rows a call.

Coefficients are searched for in coordinates in which the columns are uncorrelated, shared numbers without walls. Rows
are read in chunks and their slopes and curvatures added up, so memory is that of the data and a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.fit.newton import Optimum, newton
from robustly.fit.outcome import Outcome, Stop
from robustly.glm.binary_spline import reach_of_table, table_of
from robustly.glm.evidence import Kernel, kernel, pairs, start_state
from robustly.glm.families import Bernoulli, Binomial
from robustly.glm.local import Law, LocalPredictor
from robustly.rows.frames import Design, DesignRows
from robustly.rows.store import over_rows

CHUNK = 4096
TABLE_ROWS = CHUNK
LOGISTIC = 1.7
"""A logistic curve is close to that of a normal with this standard deviation."""


@dataclass(frozen=True)
class Plan:
    """What to fit, and how."""

    law: Law
    nodes: int | None = None
    """Points a row; None chooses by the spread, 0 is Laplace's approximation."""
    held: Mapping[str, float] = field(default_factory=dict)
    """Shared numbers that are not fitted, by name, on their own scale."""
    hyperprior: Any = None
    stop: Stop = Stop(1e-8, 100)  # noqa: RUF009
    rough: bool = False
    """Fewer points a row, which is enough for a start."""
    tether: float = 0.0
    """A light pull of the coefficients to zero, for parts of the rows that may not span all columns."""
    known: Found | None = None
    """The classical fit of these rows, where it was made before: a search that starts from it need not fit it again."""


@dataclass(frozen=True, eq=False)
class Found:
    """Where a search ended."""

    design: Design
    plan: Plan
    u: np.ndarray
    phi: np.ndarray
    """Shared numbers, held ones included, without walls."""
    optimum: Optimum
    seen: np.ndarray
    """Every row's evidence where the search last looked."""
    state: np.ndarray | None
    nodes: int
    notes: tuple[str, ...] = ()
    plain_value: float | None = None
    """The log likelihood of the classical model, where it was fitted to all rows on the way."""

    @cached_property
    def evidence(self) -> np.ndarray:
        """Every row's, at the optimum."""
        if self.optimum.before is None:
            return self.seen
        climb = Climb(self.design, self.plan, self.nodes)
        climb.state = self.state
        return climb.found(replace(self.optimum, before=None)).seen

    @property
    def log_likelihood(self) -> float:
        if self.optimum.before is None:
            return float(self.design.rows.weight @ self.seen)
        return self.value - Climb(self.design, self.plan, self.nodes).log_prior(self.u, self.phi)

    @property
    def outcome(self) -> Outcome:
        return self.optimum.outcome

    @property
    def value(self) -> float:
        """The objective: log likelihood, less penalties."""
        return self.optimum.value

    def ending(self, kind: str, text: str) -> Found:
        return replace(self, optimum=replace(self.optimum, outcome=Outcome(kind, text, self.outcome.steps)))


class Climb:
    """The objective of a design and a law, as Newton steps ask for it."""

    def __init__(self, design: Design, plan: Plan, nodes: int) -> None:
        self.design = design
        self.plan = plan
        self.kernel: Kernel = kernel(plan.law, nodes)
        # One 0/1 row is like another with the same predictor: many of them are read off a table.
        self.tabulated = not plan.law.closed and isinstance(plan.law.family, Bernoulli) and len(design) >= TABLE_ROWS
        # Rows without points are so cheap that what surrounds a chunk shows.
        chunk = CHUNK if self.kernel.can_be_rough and not self.tabulated else 2 * CHUNK
        self.rows = DesignRows(design.rows.data, design.rows.weight, chunk, design.rows.labels)
        names = plan.law.names
        self.free = np.array([i for i, name in enumerate(names) if name not in plan.held], dtype=int)
        self.phi = np.array([plan.law.free(n, plan.held[n]) if n in plan.held else 0.0 for n in names])
        # With 0/1 rows a larger spread and larger coefficients say the same; what they say together is searched for.
        self.attenuated = (
            isinstance(plan.law, LocalPredictor)
            and isinstance(plan.law.family, Bernoulli | Binomial)
            and [plan.law.names[i] for i in self.free] == ["spread"]
        )
        self.state: np.ndarray | None = None
        self.seen: tuple[np.ndarray, np.ndarray] | None = None

    def split(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates of the coefficients, and all shared numbers."""
        phi = self.phi.copy()
        phi[self.free] = vector[self.design.size :]
        return vector[: self.design.size], phi

    def joined(self, u: np.ndarray, phi: np.ndarray) -> np.ndarray:
        return np.concatenate([u, phi[self.free]])

    @property
    def walled(self) -> np.ndarray:
        return np.arange(self.design.size + len(self.free)) >= self.design.size

    def __call__(self, vector: np.ndarray, rough: bool = False) -> tuple[float, np.ndarray, np.ndarray]:
        curves = lambda at: self.curves(at, rough or self.plan.rough)
        return attenuated_curves(curves, vector, self.design.size) if self.attenuated else curves(vector)

    def curves(self, vector: np.ndarray, rough: bool = False) -> tuple[float, np.ndarray, np.ndarray]:
        """Value, slope and curvature of the objective."""
        u, phi = self.split(vector)
        design, k = self.design, self.kernel.size
        beta = design.to_shifted @ u
        table = None
        if self.tabulated:
            reach = design.reach(beta)
            if reach > reach_of_table():
                reach = float(np.abs(design.predictor(u)).max(initial=1.0))
            with double_precision():
                table = table_of(self.kernel, tuple(phi), reach)
        if self.state is None and table is None:
            self.state = self._start_state(beta, phi)
        curves = table or partial(self.kernel.curves, rough=rough)

        def one_chunk(data: Any, weight: np.ndarray, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            with np.errstate(all="ignore"):  # Places too far out are told by values that are not finite.
                return add_up(data, weight, state)

        def add_up(data: Any, weight: np.ndarray, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            matrix = design.shifted(data[0])
            m = data[1] + design.linear(matrix, beta)
            *parts, state = curves(m, tuple(phi), (data[2], data[3]), state)
            value, slope, curve = (np.asarray(part) for part in parts)
            counts = weight > 0
            slope, curve = (np.where(counts[:, None], a * weight[:, None], 0.0) for a in (slope, curve))
            sums = {
                "value": np.where(counts, weight * value, 0.0).sum(),
                "slope_w": design.crossed(matrix, slope[:, 0]),
                "curve_w": design.gram(matrix, curve[:, 0]),
                "slope": slope[:, 1:].sum(axis=0),
                "curve": curve.sum(axis=0),
                "mixed": np.stack(
                    [design.crossed(matrix, curve[:, pairs(k).index((j, 0))]) for j in range(1, k)], axis=-1
                )
                if k > 1
                else np.zeros((len(beta), 0)),
            }
            return sums, {"evidence": value} | (
                {} if state is None else {"state": np.asarray(state).astype(np.float32)}
            )

        with double_precision():
            ready = self.rows.bucket in self.kernel.compiled
            sums, by_row = over_rows(one_chunk, self.rows, None if table else self.state, ready=ready)
        self.kernel.compiled.add(self.rows.bucket)
        if "state" in by_row and np.all(np.isfinite(by_row["state"])):
            self.state = by_row["state"]
        self.seen = (vector.copy(), by_row["evidence"])
        self.latest = self._assemble(u, phi, sums)
        return self.latest

    def _start_state(self, beta: np.ndarray, phi: np.ndarray) -> np.ndarray:
        design, parts = self.design, []
        if not self.kernel.can_be_rough:
            return start_state(self.plan.law, design.y, design.trials, phi)
        for place in self.rows.places():  # by chunks, as everything by row takes memory
            matrix, offset, y, trials = (column[place] for column in design.rows.data)
            centre = offset + design.linear(design.shifted(matrix), beta)
            parts.append(start_state(self.plan.law, y, trials, phi, centre))
        return np.concatenate(parts)

    def _is_latest(self, vector: np.ndarray) -> bool:
        """Whether the last pass was made here, to the last digit or nearly."""
        return self.seen is not None and np.allclose(self.seen[0], vector, rtol=1e-15, atol=0.0)

    def _assemble(self, u: np.ndarray, phi: np.ndarray, sums: dict[str, Any]) -> tuple[float, np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            return self._add_up(u, phi, sums)

    def _add_up(self, u: np.ndarray, phi: np.ndarray, sums: dict[str, Any]) -> tuple[float, np.ndarray, np.ndarray]:
        turn, size, k = self.design.to_shifted, self.design.size, self.kernel.size
        shared = np.zeros((k - 1, k - 1))
        for total, (i, j) in zip(sums["curve"], pairs(k)):
            if j > 0:
                shared[i - 1, j - 1] = shared[j - 1, i - 1] = total
        free = self.free
        slope = np.concatenate([turn.T @ sums["slope_w"], sums["slope"][free]])
        curve = np.zeros((len(slope), len(slope)))
        curve[:size, :size] = turn.T @ sums["curve_w"] @ turn
        curve[:size, size:] = (turn.T @ sums["mixed"])[:, free]
        curve[size:, :size] = curve[:size, size:].T
        curve[size:, size:] = shared[np.ix_(free, free)]
        slope[:size] -= self._penalty @ u
        curve[:size, :size] -= self._penalty
        if self._spread is not None:
            assert self.plan.hyperprior is not None
            place = size + int(np.flatnonzero(free == self._spread)[0])
            extra = self.plan.hyperprior.derivatives(phi[self._spread])
            slope[place] += extra[1]
            curve[place, place] += extra[2]
        return float(sums["value"]) + self.log_prior(u, phi), slope, curve

    def log_prior(self, u: np.ndarray, phi: np.ndarray) -> float:
        """What the objective holds beside the rows' evidences: penalty and hyperprior."""
        believed = 0.0 if self._spread is None else self.plan.hyperprior.derivatives(phi[self._spread])[0]
        return float(believed) - 0.5 * float(u @ self._penalty @ u)

    @cached_property
    def _penalty(self) -> np.ndarray:
        return self.design.penalty + self.plan.tether * np.eye(self.design.size)

    @property
    def _spread(self) -> int | None:
        """Which of the shared numbers something is believed of."""
        fitted = self.plan.hyperprior is not None and "spread" not in self.plan.held
        return self.plan.law.names.index("spread") if fitted else None

    def climb(self, u: np.ndarray, phi: np.ndarray, watch: Any = None) -> Found:
        """Newton from a start."""
        start, size = self.joined(u, phi), self.design.size
        if self.attenuated:
            start[:size] /= attenuation(start[-1])[0]
        # A table is made with all points: they are few beside the rows that are read off it.
        rough = (lambda at: self(at, rough=True)) if self.kernel.can_be_rough and not self.tabulated else None
        watched = None if watch is None else _watched(watch)
        optimum = newton(self, start, self.plan.stop, rough=rough, walled=self.walled, watch=watched)
        if self.attenuated:
            vector, seen = (unattenuated(at, size) for at in (optimum.vector, optimum.seen))
            _, slope, curve = self.latest if self._is_latest(seen) else self.curves(seen)
            before = None if optimum.before is None else seen
            optimum = replace(optimum, vector=vector, slope=slope, curve=curve, before=before)
        if optimum.outcome.kind == "max_steps":
            text = optimum.outcome.text.replace("max_steps", "max_iter")
            optimum = replace(optimum, outcome=Outcome("max_steps", text, optimum.outcome.steps))
        return self.found(optimum)

    def found(self, optimum: Optimum) -> Found:
        if not self._is_latest(optimum.seen):
            self.curves(optimum.seen)
        assert self.seen is not None
        evidence, base = self.seen[1].copy(), 0.0
        for place in self.rows.places():
            each = self.plan.law.family.log_base(self.design.y[place], self.design.trials[place])
            evidence[place] += each
            base += float(self.design.rows.weight[place] @ each)
        optimum = replace(optimum, value=optimum.value + base)
        u, phi = self.split(optimum.vector)
        state = None if self.plan.law.closed else self.state
        return Found(self.design, self.plan, u, phi, optimum, evidence, state, self.kernel.nodes)


def attenuation(log_spread: float) -> tuple[float, float, float]:
    """By how much a spread of log odds shrinks coefficients, and two derivatives in the log of the spread."""
    square = float(np.exp(2.0 * log_spread)) / LOGISTIC**2
    factor = np.sqrt(1.0 + square)
    return factor, square / factor, square * (2.0 + square) / factor**3


def unattenuated(vector: np.ndarray, size: int) -> np.ndarray:
    """Coefficients as they are, from what is left of them under the spread that comes after them."""
    return np.concatenate([vector[:size] * attenuation(vector[size])[0], vector[size:]])


def attenuated_curves(curves: Any, vector: np.ndarray, size: int) -> tuple[float, np.ndarray, np.ndarray]:
    """An objective as a function of coefficients divided by their attenuation."""
    factor, first, second = attenuation(vector[size])
    v = vector[:size]
    value, slope, curve = curves(np.concatenate([factor * v, vector[size:]]))
    inner, cross = curve[:size, :size], curve[:size, size]
    new_slope, new_curve = slope.copy(), curve.copy()
    new_slope[:size] = factor * slope[:size]
    new_slope[size] = slope[size] + first * v @ slope[:size]
    new_curve[:size, :size] = factor**2 * inner
    new_curve[:size, size] = factor * cross + factor * first * (inner @ v) + first * slope[:size]
    new_curve[size, :size] = new_curve[:size, size]
    new_curve[size, size] = (
        curve[size, size] + 2.0 * first * (v @ cross) + first**2 * (v @ inner @ v) + second * (v @ slope[:size])
    )
    return value, new_slope, new_curve


def by_row(found: Found) -> tuple[np.ndarray, np.ndarray]:
    """Every row's slopes and curvatures in its predictor and the shared numbers."""
    climb = Climb(found.design, found.plan, found.nodes)
    climb.state = (
        found.state
        if found.state is not None
        else start_state(found.plan.law, found.design.y, found.design.trials, found.phi)
    )
    beta = found.design.to_shifted @ found.u

    def one_chunk(data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        m = data[1] + found.design.linear(found.design.shifted(data[0]), beta)
        _, slope, curve, _ = climb.kernel.curves(m, tuple(found.phi), (data[2], data[3]), state)
        return {}, {"slope": slope, "curve": curve}

    with np.errstate(all="ignore"), double_precision():
        _, parts = over_rows(one_chunk, climb.rows, climb.state)
    return parts["slope"], parts["curve"]


def _watched(reason: Any) -> Any:
    """A reason to stop, of the vector alone, as an outcome."""

    def watch(vector: np.ndarray, gain: float) -> Outcome | None:
        text = reason(vector)
        return None if text is None else Outcome("watched", text)

    return watch
