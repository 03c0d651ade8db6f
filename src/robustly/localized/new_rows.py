"""Which rows are to be predicted? A call of the program without its observations, whatever the program does without them.

A program that was written ``def model(x, y=None)`` can be called without `y`. One that needs `y` to know how many rows there
are, or takes it without a default, is called with stand-ins, and its observed sites are drawn all the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustly.errors import DataError, ModelError, RobustlyError, names
from robustly.localized.calls import Calls
from robustly.model.program.arguments import Arguments, read_arguments
from robustly.model.program.read import Program
from robustly.rows.arrays import ArrayRows, make_rows

CHUNK = 512


@dataclass(frozen=True, eq=False)
class NewRows:
    """Rows to be predicted, and what predicts them."""

    calls: Calls
    rows: ArrayRows
    missing: tuple[str, ...]
    """Labels of the observations that :meth:`~robustly.localized.predictor.Predictive.log_prob` takes."""


def fitted_rows(program: Program, arguments: Arguments) -> NewRows:
    """The rows of a fit, as if they had not been observed."""
    return _found(program, arguments, program.sites.observed, program.observation_labels)


def new_rows(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewRows:
    """Rows given by a call without their observations."""
    model = program.request.model
    signature = inspect.signature(model)
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise DataError(f"the model takes {signature}, but the call does not fit it: {error}.") from error
    observed = [label for label in program.observation_labels if label in signature.parameters]
    given = [name for name in observed if bound.arguments.get(name) is not None]
    if given:
        raise DataError(
            f"the new rows come with observations of {names(given)}. Leave them out of predictive(): they are what is "
            "predicted. For their density use predictive(…).log_prob(…)."
        )
    needed = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in bound.arguments
        and name not in observed
    ]
    if needed:
        raise DataError(f"new rows need {names(needed)}, as in the call that was fitted.")
    # Some programs have one more branch for predictions; with stand-ins they take the one that was fitted.
    tries = [_with_stand_ins(program, bound, observed), _with_none(program, bound, observed)]
    reason: Exception | None = None
    for arguments, unobserved, missing in filter(None, tries):
        _check_rows(program, arguments)
        try:
            found = _found(program, arguments, unobserved, missing)
            _ = found.calls.sites
        except RobustlyError as error:
            reason = reason or error
        except Exception as error:  # what a program cannot do without its observations, only running it can tell
            reason = reason or error
        else:
            return found
    if isinstance(reason, RobustlyError):
        raise reason
    if program.is_whole:
        raise ModelError(
            f"the model, which is run on all rows at once, cannot be run with these new rows ({type(reason).__name__}: {reason}). "
            "What it takes from its data, such as the number of groups, must come out as in the fit: give rows of all groups, or state "
            "sizes outside the model."
        ) from reason
    raise ModelError(
        f"the model cannot be run without the observations of {names(program.sites.observed)}, which prediction needs "
        f"({type(reason).__name__}: {reason}). Let it take them as None, as in def model(x, y=None)."
    ) from reason


Try = tuple[Arguments, tuple[str, ...], tuple[str, ...]]


def _with_none(program: Program, bound: inspect.BoundArguments, observed: Sequence[str]) -> Try:
    arguments = inspect.BoundArguments(bound.signature, type(bound.arguments)(bound.arguments))
    for name in observed:
        if bound.signature.parameters[name].default is inspect.Parameter.empty:
            arguments.arguments[name] = None
    read = read_arguments(program.request.model, arguments.args, arguments.kwargs)
    trained = [label for label, row in zip(program.arguments.labels, program.is_row) if row]
    return read, (), tuple(label for label in trained if label not in read.labels)


def _with_stand_ins(program: Program, bound: inspect.BoundArguments, observed: Sequence[str]) -> Try | None:
    """The call with the first row's observations in every row: only how many there are will matter."""
    if not observed:
        return None
    trained = {
        label: leaf
        for label, leaf, row in zip(program.arguments.labels, program.arguments.leaves, program.is_row)
        if row
    }
    given = read_arguments(program.request.model, (), dict(bound.arguments), partial=True)
    sizes = {np.shape(leaf)[0] for label, leaf in zip(given.labels, given.leaves) if label in trained and np.ndim(leaf)}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    full = inspect.BoundArguments(bound.signature, type(bound.arguments)(bound.arguments))
    for name in observed:
        full.arguments[name] = np.repeat(np.asarray(trained[name])[:1], size, axis=0)
    read = read_arguments(program.request.model, full.args, full.kwargs)
    return read, program.sites.observed, tuple(observed)


def _check_rows(program: Program, arguments: Arguments) -> None:
    trained = dict(zip(program.arguments.labels, program.arguments.leaves))
    rows = {label for label, row in zip(program.arguments.labels, program.is_row) if row}
    if rows and not rows.intersection(arguments.labels):
        raise DataError(f"new rows are needed for {names(rows)}, as in the call that was fitted.")
    for label, leaf in zip(arguments.labels, arguments.leaves):
        if label in rows and np.shape(leaf)[1:] != np.shape(trained[label])[1:]:
            raise DataError(
                f"{label} has {np.shape(leaf)[1:]} entries a row, but the model was fitted with "
                f"{np.shape(trained[label])[1:]}."
            )


def _found(program: Program, arguments: Arguments, unobserved: tuple[str, ...], missing: tuple[str, ...]) -> NewRows:
    trained = {label for label, row in zip(program.arguments.labels, program.is_row) if row}
    is_row = tuple(label in trained for label in arguments.labels)
    calls = _calls_like(program, arguments, is_row, unobserved)
    data, labels = calls.program.row_data(arguments)
    return NewRows(calls, make_rows(data, labels, chunk=CHUNK), missing)


def _calls_like(program: Program, arguments: Arguments, is_row: tuple[bool, ...], unobserved: tuple[str, ...]) -> Calls:
    """What predicts calls like this one; kept with the program."""
    for known in program.predictors:
        if known.program.unobserved == unobserved and known.program.is_like(arguments):
            return known
    program.predictors.append(Calls(program.called_with(arguments, is_row, unobserved)))
    return program.predictors[-1]
