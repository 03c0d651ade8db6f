"""``robustly predict``: new rows under a saved regression."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustly.cli import options as opt
from robustly.cli.request import about
from robustly.errors import DataError, PersistError
from robustly.rows.paths import refuse_missing_file

if TYPE_CHECKING:
    import pandas as pd

    from robustly.glm.predictive import GLMPredictive


def predict_command(
    model: Annotated[Path, typer.Argument(help="File written by robustly fit --save.", show_default=False)],
    new: Annotated[
        Path, typer.Argument(help="File with the columns of the formula; - is standard input.", show_default=False)
    ],
    interval: Annotated[float, typer.Option(help="Probability of the interval from low to high.")] = 0.9,
    interval_of: Annotated[
        str, typer.Option(help="response: where a new row lies; mean: how sure its expected value is.")
    ] = "response",
    out: Annotated[Path | None, typer.Option(help="CSV file to write; standard output by default.")] = None,
    delimiter: opt.Delimiter = None,
    encoding: opt.Encoding = "utf-8",
    decimal: opt.Decimal = ".",
) -> None:
    """Predict new rows: expected value, that of a typical row, standard deviation and an interval, as CSV.

    Exit codes: 0, or 2 for bad input, with one line on stderr and nothing written.
    """
    refuse_missing_file(model)
    refuse_missing_file(new)
    from robustly.cli import terminal
    from robustly.result import persist
    from robustly.rows.files import read_table, refuse_wrong_delimiter

    if not 0 < interval < 1:
        raise DataError(f"--interval is a probability between 0 and 1; got {interval}.")
    if interval_of not in ("response", "mean"):
        raise DataError(f"--interval-of takes response or mean; got {interval_of!r}.")
    terminal.refuse_unwritable(out, reads=(model, new))
    kept = persist.load(model)
    fitted = getattr(kept, "result_", kept)
    if not hasattr(fitted, "fitted"):
        raise PersistError(
            f"{model} holds a {type(kept).__name__}, not a regression. Give a file of robustly fit --save."
        )
    table = read_table(new, delimiter, encoding, decimal)
    with about(table), terminal.working("predicting …"):
        if fitted.formula is not None:
            refuse_wrong_delimiter(table, set(fitted.formula.variables))
            predictive, classes = fitted.predictive(table.frame), fitted.formula.classes
        else:
            wanted = list(getattr(kept, "feature_names_in_", []))
            missing = [name for name in wanted if name not in table.frame]
            if not wanted or missing:
                lacks = (
                    f"column {missing[0]!r} is missing" if missing else "the model does not know its columns by name"
                )
                raise DataError(f"{lacks}. Use a model of robustly fit --save.")
            predictive, classes = kept.predict_dist(table.frame[wanted]), getattr(kept, "classes_", ())
        terminal.write_csv(predictions_frame(predictive, interval, tuple(classes), interval_of), out)
    if out is not None:
        typer.echo(f"wrote {len(predictive)} predictions to {out}", err=True)


def predictions_frame(
    predictive: GLMPredictive, interval: float, classes: tuple[Any, ...], interval_of: str = "response"
) -> pd.DataFrame:
    """The predictions of a table: of yes-or-no rows the probability, of others mean, spread and interval."""
    import numpy as np
    import pandas as pd

    frame = pd.DataFrame({"row": np.arange(len(predictive))})
    if predictive.family.yes_or_no or classes:
        frame["probability"], frame["typical"] = predictive.mean, predictive.typical
        names = classes or (0, 1)
        frame = frame.assign(**{"class": np.where(predictive.mean > 0.5, names[1], names[0])})
        if interval_of == "mean":
            frame["low"], frame["high"] = predictive.mean_interval(interval)
        return frame
    low, high = predictive.mean_interval(interval) if interval_of == "mean" else predictive.interval(interval)
    return frame.assign(mean=predictive.mean, typical=predictive.typical, sd=predictive.sd, low=low, high=high)
