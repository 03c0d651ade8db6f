"""How does a fit read from a file get its program back? No code is stored; the caller gives it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from robustly._runtime.precision import in_double_precision
from robustly.approx import default_approximation
from robustly.errors import DataError, names
from robustly.fit.passes import passes
from robustly.localized.model import Localized
from robustly.localized.rows import told_apart
from robustly.localized.source import ProgramModel
from robustly.model.conjugacy import detect
from robustly.model.program.arguments import read_arguments
from robustly.model.program.read import Program
from robustly.model.program.request import Request
from robustly.model.program.whole import WholeProgram
from robustly.result.fit import Fit
from robustly.result.saved import fields_of
from robustly.result.source import FittedModel, ModelOnFile
from robustly.rows.arrays import make_rows


def from_saved(
    meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], model: Callable[..., Any] | Localized | None = None
) -> Fit:
    """A fit as ``fit.save`` wrote it; with the program it was made from, it can predict again."""
    fields = fields_of(meta, arrays)
    fitted: FittedModel = ModelOnFile("fit", {"call": meta["call"]})
    if model is not None:
        fitted = reattached(model, meta["call"], fields["parameters"], fields["vector"])
    return Fit(**{**fields, **told_apart(fields["parameters"], fields["limits"]), "model": fitted})


@in_double_precision
def reattached(
    model: Callable[..., Any] | Localized, call: Mapping[str, Any], parameters: Mapping[str, Any], vector: np.ndarray
) -> ProgramModel:
    """The program of a saved fit, read for rows like its first one; the training rows themselves were not kept."""
    stated = None if call["rows"] is None else tuple(call["rows"])
    request = (
        model.request
        if isinstance(model, Localized)
        else Request(model, tuple(call["sites"]), stated, plate=call["plate"])
    )
    request = replace(
        request, sites=tuple(call["sites"]), flat=tuple(call["flat"]), fixed=call["fixed"] or request.fixed
    )
    arguments = read_arguments(request.model, (), _leaves(call))
    if isinstance(model, Localized):
        known = model.known_program(request, arguments)
        if known is not None and sorted(known[1].start) == sorted(parameters):
            return ProgramModel(known[0], arguments, passes(known[1], default_approximation(known[1])), vector)
    program = (WholeProgram if call.get("whole") else Program)(request, arguments)
    if sorted(program.row_model.start) != sorted(parameters):
        raise DataError(
            f"the model given has the parameters {names(program.row_model.start)}, but the saved fit {names(parameters)}."
        )
    rows = make_rows(*program.row_data(arguments))
    row_model, _ = detect(program.row_model, rows) if program.size else (program.row_model, "")
    return ProgramModel(program, arguments, passes(row_model, default_approximation(row_model)), vector)


def _leaves(call: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments like those of the fit: its first row twice, and what was no row as it was."""
    taken = iter(call["first_row"])
    leaves: dict[str, Any] = {}
    for label, row, known, kind in call["arguments"]:
        if row:
            one = np.asarray(next(taken))
            leaves[label] = np.stack([one, one]).astype({"f": float, "i": int, "u": int, "b": bool}[kind])
        else:
            listed = {"f": float, "i": int, "u": int, "b": bool}.get(kind)
            leaves[label] = np.array(known, dtype=listed) if isinstance(known, list) else known
    if any("[" in label or "." in label for label in leaves):
        raise DataError("this fit was made with nested arguments; fit the model again to predict with it.")
    return leaves
