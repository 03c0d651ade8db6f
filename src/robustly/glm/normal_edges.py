"""What lies at the ends of laws of a normal response? No spread, no noise, the normal law, fits through a few rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from robustly.fit.newton import Watch
from robustly.fit.outcome import Outcome
from robustly.fit.problem import Found, Limit
from robustly.glm.classical import PERFECT, START_ROWS, ClassicalLimit, classical_limit
from robustly.glm.noiseless import noiseless
from robustly.glm.regression import Climb, Edges, Regression
from robustly.model.linear import Design

# Shares of spread or scale in the other below which it is negligible, at first and at last.
NEGLIGIBLE = (0.03, 1e-4)
# Degrees of freedom as good as normal.
NEARLY_NORMAL = 1e4
NO_SCALE, ODD_DOF = Outcome("end", "the scale is running to zero"), Outcome("end", "the degrees of freedom run off")


# ---------------------------------------------------------------------- predictors of the rows' own


class NoNoise(Limit):
    """Rows' own predictors take up all noise."""

    def __init__(self, problem: Regression, plain: ClassicalLimit) -> None:
        self.problem, self.plain = problem, plain

    @cached_property
    def found(self) -> Found:  # type: ignore[override]
        u, phi = self.plain.parts
        return noiseless(self.problem.design, self.problem.plan, u, phi[0] - 0.7)

    def answers(self, best: Found) -> bool:
        return self.found.outcome.converged and _beaten(best, self.found.value)

    def answer(self, best: Found | None) -> Found:
        return self.found


class NoSpreadOfNormal(ClassicalLimit):
    """No spread of a normal response's own predictors."""

    def answers(self, best: Found) -> bool:
        return self.is_fitted and _beaten(best, self.found.value)


def _beaten(best: Found, value: float) -> bool:
    return best.outcome.kind in ("end", "bad_start") or value >= best.value - 1e-8


def _stands(limit: Limit) -> bool:
    """Whether a limit can be the answer."""
    return limit.found.outcome.converged and (not isinstance(limit, ClassicalLimit) or limit.is_fitted)


class NoiseEdges(Edges):
    """Rows with predictors of their own: between no spread and no noise, either of which may be best."""

    def __init__(self, small: float = NEGLIGIBLE[0]) -> None:
        self.small = small

    def limits(self, problem: Regression, begin: Found | None) -> Sequence[Limit]:
        plain = NoSpreadOfNormal(problem)
        if not plain.found.outcome.converged:
            return [plain]
        both = [NoNoise(problem, plain), plain]
        return sorted(both, key=lambda limit: -limit.found.value if _stands(limit) else np.inf)

    def starts(self, problem: Regression) -> Sequence[np.ndarray]:
        plan, plain = problem.plan, classical_limit(problem)
        phi = plain.phi(default=np.log(4.0))
        for name in {"spread", "scale"} - set(plan.held):
            phi[plan.law.names.index(name)] = plain.parts[1][0] - 0.7
        return [problem.joined(plain.parts[0], phi)]

    def watch(self, problem: Regression) -> Watch | None:
        spread, scale = (problem.plan.law.names.index(name) for name in ("spread", "scale"))
        low, high = self.small * len(problem.design) ** (-1.0 / 3.0), 1.0 / self.small

        def watch(vector: np.ndarray, gain: float) -> Outcome | None:
            phi = problem.split(vector)[1]
            inside = low < float(np.exp(phi[scale] - phi[spread])) < high
            return None if inside else Outcome("end", "spread or scale runs to zero")

        return watch

    def at_end(self, problem: Regression, found: Found, climb: Climb) -> Found:
        best = max((limit.found.value for limit in problem.known_limits if _stands(limit)), default=-np.inf)
        if self.small == NEGLIGIBLE[1] or best >= found.value - 1e-6:
            return found
        patient = Regression(problem.design, problem.plan, NoiseEdges(NEGLIGIBLE[1]), problem.kernel.approx)
        patient.known_limits = problem.known_limits
        return climb(patient, found.vector)


# ---------------------------------------------------------------------- precisions of the rows' own: Student's t


class NormalLimit(ClassicalLimit):
    """Infinitely many degrees of freedom."""

    def answers(self, best: Found) -> bool:
        if best.outcome.kind == "end":
            return True
        worse = self.is_known and best.value < self.found.value - 1e-7
        return worse and "dof" not in self.problem.plan.held


class PrecisionEdges(Edges):
    """Student's t: between the normal law and fits through as many rows as there are coefficients."""

    def limits(self, problem: Regression, begin: Found | None) -> Sequence[Limit]:
        return [NormalLimit(problem, begin)]

    def starts(self, problem: Regression) -> Sequence[np.ndarray]:
        u, (log_scale,) = classical_limit(problem).parts
        lowest = np.log(1.2 * lowest_dof(problem))
        return [
            problem.joined(at, np.maximum(phi, [-np.inf, lowest]))
            for at, phi in student_t_starts(problem.design, u, float(np.exp(log_scale)))
        ]

    def watch(self, problem: Regression) -> Watch | None:
        floor, free, seen = lowest_dof(problem), "dof" not in problem.plan.held, [0.0]

        def watch(vector: np.ndarray, gain: float) -> Outcome | None:
            scale, dof = np.exp(problem.split(vector)[1])
            seen[0] = max(seen[0], scale)
            if scale < PERFECT * seen[0]:
                return NO_SCALE
            return ODD_DOF if free and not floor < dof < NEARLY_NORMAL else None

        return watch

    def at_end(self, problem: Regression, found: Found, climb: Climb) -> Found:
        if found.outcome.text == NO_SCALE.text:
            text = (
                "so many rows lie on one line to rounding that the scale runs to zero; look at those rows, or fix dof."
            )
            return found.with_outcome("perfect_fit", text)
        u, phi = problem.split(found.vector)
        if np.exp(phi[1]) >= NEARLY_NORMAL:
            return found
        floor = lowest_dof(problem)
        held = problem.held_at({"dof": floor})
        return climb(held, held.joined(u, phi)).with_outcome(
            "bound",
            f"the degrees of freedom stopped at {floor:.3g}: below, a fit through {problem.design.size} rows has infinite "
            "likelihood. Use fewer columns, or fix dof.",
        )


def lowest_dof(problem: Regression) -> float:
    """Below this many degrees of freedom a fit through as many rows as coefficients has an infinite likelihood."""
    size = problem.design.size
    return max(0.1, 1.5 * size / max(problem.design.rows.total_weight - size, 1.0))


def student_t_starts(design: Design, u: np.ndarray, scale: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """From the classical fit, and from a few reweighted fits with the tails of a t with one degree of freedom."""
    if len(design) > START_ROWS or design.rows.here is None:
        design = design.with_rows(design.rows.sample(START_ROWS, 0))
    weight = design.rows.weight
    starts = [(u, np.log([0.8 * scale, 8.0]))]
    for _ in range(15):
        rest = design.y - design.predictor(u)
        middle = np.median(np.abs(rest[weight > 0]))
        scale = max(1.48 * float(middle), 1e-6 * scale)
        believed = 2.0 / (1.0 + (rest / scale) ** 2)
        u = design.with_rows(design.rows.weighed(weight * believed)).project(lambda data: data[2] - data[1])
    starts.append((u, np.log([scale, 1.5])))
    return starts
