"""One row at a time, or all at once? How a program is read is found by trying.

A program that can be called with one row serves data of any size, in chunks. One that cannot (it takes sizes from its data,
reads them from outside, or looks at all rows) is run on all rows at once.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from robustly.errors import DataError, LocalizeError, RobustlyError, SupportError
from robustly.model.program.arguments import Arguments
from robustly.model.program.checks import user_line
from robustly.model.program.read import Program
from robustly.model.program.request import Request, Tangled
from robustly.model.program.whole import WholeProgram
from robustly.rows.arrays import make_rows


def read_program(request: Request, arguments: Arguments) -> Program:
    """The program, read for calls like this one; a named error tells why it cannot be."""
    try:
        _refuse_unusable(arguments)
        return Program(request, arguments)
    except SupportError:
        raise
    except Tangled as error:
        if request.follow:
            return read_program(replace(request, sites=(*request.sites, error.site)), arguments)
        raise
    except Exception as error:  # whatever one row cannot give, all of them may, unless rows were named
        if request.rows is not None and isinstance(error, RobustlyError):
            raise
        first = error
    try:
        found = WholeProgram(request, arguments)
    except Exception as error:
        raise _more_telling(first, error, request) from error
    if isinstance(first, DataError) and not found.is_finite:
        raise first
    found.reason = _reason(first)
    return found


def _reason(error: Exception) -> str:
    text = str(error).split("\n")[0]
    return text if isinstance(error, RobustlyError) else f"{type(error).__name__}: {text}"


def _more_telling(first: Exception, second: Exception, request: Request) -> Exception:
    """The error that says most: of the reading row by row, if it has a name, else of the other."""
    for error in (first, second):
        if isinstance(error, RobustlyError):
            return error
    text = str(second).split("\n")[0]
    return LocalizeError(
        f"the model could not be run with these arguments{user_line(second, request.model)}: "
        f"{type(second).__name__}: {text}. Try handlers.seed(model, 0)(…) with the same arguments."
    )


def _refuse_unusable(arguments: Arguments) -> None:
    lengths = [leaf.shape[0] for leaf in arguments.leaves if np.ndim(leaf) > 0]
    if lengths and not any(lengths):
        raise DataError("there are no rows to fit: the data are empty.")
    for label, leaf in zip(arguments.labels, arguments.leaves):
        if np.ndim(leaf) > 0 and not isinstance(leaf, jax.core.Tracer):
            make_rows([leaf], [label])
