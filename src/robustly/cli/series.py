"""``robustly series``: outliers, breaks and a forecast of one column of a file, in the shell."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from robustly.errors import ConvergenceWarning, DataError, ModelError, PersistError, did_you_mean, names


class Level(StrEnum):
    local_level = "llevel"
    local_trend = "lltrend"
    smooth_trend = "strend"


def series_command(
    data: Annotated[Path, typer.Argument(help="CSV, TSV or Parquet file with a header line.", show_default=False)],
    value: Annotated[str, typer.Option("--value", help="Column with the series.", show_default=False)],
    time: Annotated[str | None, typer.Option("--time", help="Column with evenly spaced dates or numbers.")] = None,
    seasonal: Annotated[int | None, typer.Option("--seasonal", min=2, help="Steps in a season, such as 12.")] = None,
    level: Annotated[
        Level, typer.Option(help="llevel: random walk; lltrend: with a slope; strend: smooth.")
    ] = Level.local_level,
    localize: Annotated[
        str, typer.Option(help="Disturbances with a precision at every step, such as irregular,level.")
    ] = "irregular,level",
    log: Annotated[bool, typer.Option("--log", help="Take logarithms of the values first.")] = False,
    steps: Annotated[int, typer.Option(min=0, help="Steps to forecast.")] = 0,
    fdr: Annotated[float, typer.Option(help="False discovery rate of outliers and breaks.")] = 0.05,
    report: Annotated[Path | None, typer.Option(help="Write a page about the series: one HTML file.")] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the fit in a file.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
) -> None:
    """Fit a structural time-series model whose steps may be outliers or breaks, and say which are."""
    import numpy as np

    if importlib.util.find_spec("statsmodels") is None:
        raise ModelError('series needs statsmodels. Install it with: pip install "robustly[series]".')
    from robustly.series.model import LocalizedSeries
    from robustly.series.result import FittedSeries

    for path in (save, report):
        _check_folder(path)
    read = read_series(data, value, time)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model = build(read, level.value, seasonal, log)
        fit = LocalizedSeries(model, [one.strip() for one in localize.split(",") if one.strip()]).fit(seed=seed)
    series = fit.model
    assert isinstance(series, FittedSeries)
    series.steps = np.array(
        [f"{one:g}" if isinstance(one, float) else str(one).removesuffix(" 00:00:00") for one in read.index]
    )
    typer.echo(str(fit.summary()))
    _say(fit, fdr)
    ahead = series.forecast(steps, seed=seed) if steps else None
    if ahead is not None and len(read) > 1 and np.issubdtype(read.index.dtype, np.number):
        gap = read.index[1] - read.index[0]
        ahead = replace(ahead, steps=[f"{read.index[-1] + (h + 1) * gap:g}" for h in range(steps)])
    if ahead is not None:
        typer.echo("\n" + ahead.to_frame().to_string(float_format=lambda number: f"{number:.5g}"))
    for warning in caught:
        if issubclass(warning.category, ConvergenceWarning):
            typer.echo(f"{warning.category.__name__}: {warning.message}", err=True)
    if save is not None:
        fit.save(save)
        typer.echo(f"wrote {save}")
    if report is not None:
        from robustly.report.series import write_series_page

        told = f"log {value}" if log else value
        page = write_series_page(fit, report, title=f"Robust time series: {told}", data=data.name, ahead=ahead, fdr=fdr)
        typer.echo(f"wrote {page}")
    if not fit.outcome.converged:
        raise typer.Exit(1)


def _say(fit: Any, fdr: float) -> None:
    for word, wanted in (("outliers", not all(fit.break_sites)), ("breaks", any(fit.break_sites))):
        if wanted:
            found = fit.breaks(fdr, within=2) if word == "breaks" else fit.outliers(fdr)
            chance = fit.break_probability_within(2) if word == "breaks" else fit.outlier_probability
            listed = ", ".join(f"{fit.steps[i]} ({chance[i]:.3f})" for i in found[:20])
            more = f" and {len(found) - 20} more" if len(found) > 20 else ""
            told = "breaks (within 2 steps)" if word == "breaks" else word
            typer.echo(f"{told}: {listed}{more}" if len(found) else f"{told}: none")


def _check_folder(path: Path | None) -> None:
    if path is not None and not path.parent.is_dir():
        raise PersistError(f"cannot write {path}: there is no folder {path.parent}. Make it first.")


def read_series(path: Path, value: str, time: str | None) -> Any:
    """One column of a file as a pandas series over its times."""
    import numpy as np
    import pandas as pd

    from robustly.rows.files import read_table
    from robustly.series.model import calendar_of, check_spacing

    frame = read_table(path).frame
    for word, name in (("--value", value), ("--time", time)):
        if name is not None and name not in frame.columns:
            known = [str(one) for one in frame.columns]
            raise DataError(
                f'{word} names a column "{name}" that {path} does not have; it has {names(known)}.{did_you_mean(name, known)}'
            )
    column = frame[value]
    numbers = pd.to_numeric(column, errors="coerce")
    wrong = np.flatnonzero(numbers.isna() & column.notna())
    if len(wrong):
        raise DataError(
            f'column "{value}" of {path} holds {column.iloc[wrong[0]]!r} in row {wrong[0]}, which is not a number. Leave missing '
            "values empty."
        )
    if time is None:
        return pd.Series(numbers.to_numpy(float), name=value)
    stamps = frame[time]
    if stamps.isna().any():
        raise DataError(
            f'column "{time}" of {path} has no time in row {int(np.flatnonzero(stamps.isna())[0])}. Fill it in.'
        )
    if pd.api.types.is_numeric_dtype(stamps):
        check_spacing(pd.Index(stamps))
        return pd.Series(numbers.to_numpy(float), index=pd.Index(stamps), name=value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about formats that differ; the spacing is checked below
            index = pd.DatetimeIndex(pd.to_datetime(stamps))
    except (ValueError, TypeError) as error:
        raise DataError(f'column "{time}" of {path} cannot be read as dates: {str(error).splitlines()[0]}') from error
    check_spacing(index)
    return pd.Series(numbers.to_numpy(float), index=pd.DatetimeIndex(index, freq=calendar_of(index)), name=value)


def build(read: Any, level: str, seasonal: int | None, log: bool) -> Any:
    """statsmodels' structural model of the series."""
    import numpy as np
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    values = read.to_numpy(float)
    if log:
        low = np.flatnonzero(values <= 0)
        if len(low):
            raise DataError(
                f'"{read.name}" is {values[low[0]]:g} in row {low[0]}, which has no logarithm. Leave --log out.'
            )
        read = np.log(read)
    if len(read) < 3:
        raise DataError(f'"{read.name}" has {len(read)} rows; a series needs more. Check the file.')
    if np.isnan(values).all():
        raise DataError(f'all {len(read)} values of "{read.name}" are missing. Check which column was read.')
    keep = getattr(read.index, "freq", None) is not None
    return UnobservedComponents(
        read if keep else read.to_numpy(float), level=level, seasonal=seasonal, use_exact_diffuse=True
    )
