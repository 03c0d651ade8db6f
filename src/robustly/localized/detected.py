"""Which closed form has the model of a program's rows, or of its groups? Looked for once, and again by processes it is sent to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.model.conjugacy import EXAMPLES, detect
from robustly.model.group import grouped_model
from robustly.model.program.arguments import Arguments
from robustly.model.program.read import Program
from robustly.model.row import RowModel
from robustly.rows.arrays import ArrayRows, make_rows
from robustly.rows.store import Data, Rows


def rows_of_call(program: Program, arguments: Arguments, **options: Any) -> ArrayRows:
    """The arguments that are rows, as rows in memory."""
    data, labels = program.row_data(arguments)
    return make_rows(data, labels, **options)


# Of groups whose model is looked at no further.
FEW_GROUPS = 2

_DETECTED: dict[str, RowModel] = {}
_GROUPED: dict[str, RowModel] = {}


def detected_in_groups(program: Program, units: Rows) -> tuple[RowModel, str]:
    """The same of a group of the program's rows."""
    some = units.sample(EXAMPLES, 0)
    model, found = detect(grouped_model(program.row_model), some)
    few = tuple(np.asarray(array[:FEW_GROUPS]) for array in some.data) if model.examples is None else model.examples
    return replace(model, made_by=(grouped_again, (program, few))), found


def grouped_again(program: Program, examples: Data) -> RowModel:
    """The model of a group of a program that was read in another process."""
    if program.token not in _GROUPED:
        with double_precision():
            units = ArrayRows(examples, np.ones(len(examples[0])))
            _GROUPED[program.token] = detected_in_groups(program, units)[0]
    return _GROUPED[program.token]


def detected(program: Program, arguments: Arguments) -> tuple[RowModel, str]:
    """The program's row model with its conjugacy, if it has one, and what was found."""
    model, found = detect(program.row_model, rows_of_call(program, arguments))
    return replace(model, made_by=(detected_again, (program,))), found


def detected_again(program: Program) -> RowModel:
    """The row model of a program that was read in another process."""
    if program.token not in _DETECTED:
        with double_precision():
            _DETECTED[program.token] = detected(program, program.arguments)[0]
    return _DETECTED[program.token]
