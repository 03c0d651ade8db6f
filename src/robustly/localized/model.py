"""The localized model a user holds: fit it, fit its classical counterpart, or take it to another sampler."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from robustly._runtime.precision import double_precision, in_double_precision
from robustly.approx import Approximation
from robustly.errors import DataError, LocalizeError, ModelError, did_you_mean, names
from robustly.fit.checkpoint import checkpointed
from robustly.fit.outcome import warn_unless_converged
from robustly.localized.fitting import fit_program
from robustly.localized.sampling import as_numpyro
from robustly.localized.stored import stored_call
from robustly.model.conjugacy import detect
from robustly.model.program.arguments import Arguments, read_arguments
from robustly.model.program.checks import check_support
from robustly.model.program.read import Program, Request
from robustly.model.row import RowModel
from robustly.result.views import view
from robustly.rows.arrays import ArrayRows, make_rows
from robustly.rows.store import Rows

RESERVED = ("approx", "method", "weights", "start", "max_steps", "rtol", "chunk", "progress", "checkpoint")


def localize(
    model: Callable[..., Any],
    sites: str | Sequence[str],
    rows: str | Sequence[str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    hyperprior: Mapping[str, Any] | None = None,
    *,
    plate: str | None = None,
    approx: Approximation | None = None,
) -> Localized:
    r"""Give every row its own copy of a latent site, drawn from the site's prior, and let that prior be fitted.

    The model stays as it is: it is called with one row at a time. The arguments of the named site's prior become
    hyperparameters, chosen to make the rows most probable with their own values integrated out
    (Wang & Blei, *A General Method for Robust Bayesian Modeling*). All other latent sites stay shared and get point
    estimates under their priors.

    A linear state-space model of statsmodels is taken too: ``rb.localize(components, "irregular")`` gives every *step* its
    own precision of the named disturbance (see :mod:`robustly.series`).

    Args:
        model: a NumPyro model whose likelihood stands in a plate sized by its arguments.
        sites: the latent site, or sites, that may differ from row to row; up to ten dimensions together.
        rows: names of the arguments whose leading axis counts rows. Found from their shapes if not given.
        fixed: arguments of the prior that are not fitted, ``{"rate": 1.0}``, or by site ``{"b": {"loc": 0.0}}``.
        hyperprior: what is believed of fitted arguments, ``{"concentration": dist.Gamma(2, 0.1)}``; the fit is a MAP.
        plate: name of the row plate, if there are several and the outermost is not it.
        approx: how the rows' own values are integrated out; by default exactly if the site is conjugate (which is
            detected), else by quadrature.

    Example:
        >>> import jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist, robustly as rb
        >>> def model(x, y=None):
        ...     slope = numpyro.sample("slope", dist.Normal(0, 10))
        ...     precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        ...     with numpyro.plate("data", x.shape[0]):
        ...         numpyro.sample("y", dist.Normal(slope * x, precision ** -0.5), obs=y)
        >>> x = np.linspace(-1, 1, 40)
        >>> y = 2 * x + 0.1 * np.random.default_rng(0).standard_t(2, size=40)
        >>> fit = rb.localize(model, "precision").fit(x, y)
        >>> bool(abs(fit.shared["slope"] - 2) < 0.2)
        True
    """
    chosen = (sites,) if isinstance(sites, str) else tuple(sites)
    if not chosen:
        raise LocalizeError(
            'name at least one site that may differ from row to row, as in localize(model, "precision").'
        )
    if _is_statespace(model):
        return _localized_series(model, chosen, rows, fixed, hyperprior, plate, approx)
    stated = None if rows is None else (rows,) if isinstance(rows, str) else tuple(rows)
    return Localized(
        Request(
            model, chosen, stated, _by_site(fixed, chosen, "fixed"), _by_site(hyperprior, chosen, "hyperprior"), plate
        ),
        approx,
    )


def _is_statespace(model: Any) -> bool:
    """Whether `model` is a state-space model of statsmodels, which has imported its module if it is."""
    module = sys.modules.get("statsmodels.tsa.statespace.mlemodel")
    return module is not None and isinstance(model, module.MLEModel)


def _localized_series(
    model: Any, sites: Sequence[str], rows: Any, fixed: Any, hyperprior: Any, plate: Any, approx: Any
) -> Any:
    for word, value in (("rows", rows), ("hyperprior", hyperprior), ("plate", plate), ("approx", approx)):
        if value is not None:
            raise LocalizeError(f"{word}= is for NumPyro models; a state-space model takes fixed= only. Leave it out.")
    # By name: models stand side by side and do not import each other.
    return view("localized_series")(model, sites, _by_site(fixed, sites, "fixed"))


def classical(
    model: Callable[..., Any], rows: str | Sequence[str] | None = None, *, plate: str | None = None
) -> Localized:
    """The model as it is, with point estimates of all its shared sites: what a localized fit is compared with."""
    stated = None if rows is None else (rows,) if isinstance(rows, str) else tuple(rows)
    return Localized(Request(model, (), stated, plate=plate), None)


def _by_site(given: Mapping[str, Any] | None, sites: Sequence[str], word: str) -> dict[str, dict[str, Any]]:
    """``{"rate": 1.0}``, ``{"b": {"rate": 1.0}}`` or ``{"b.rate": 1.0}`` as arguments by site."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in (given or {}).items():
        if isinstance(value, Mapping):
            if name not in sites:
                raise LocalizeError(
                    f'{word}= names site "{name}", but localized are {names(sites)}.' + did_you_mean(name, sites)
                )
            found.setdefault(name, {}).update(value)
        elif "." in name and name.rpartition(".")[0] in sites:
            site, _, argument = name.rpartition(".")
            found.setdefault(site, {})[argument] = value
        elif len(sites) == 1:
            found.setdefault(sites[0], {})[name] = value
        else:
            raise LocalizeError(
                f'{word}= gives "{name}", but {names(sites)} are localized; write {word}={{"{sites[0]}": {{"{name}": …}}}}.'
            )
    return found


class Localized:
    """A model with localized sites, ready to be fitted. Made by :func:`localize`."""

    def __init__(self, request: Request, approx: Approximation | None) -> None:
        self.request = request
        self.approx = approx
        self.programs_read: list[tuple[Program, RowModel, str]] = []
        # Programs read with stand-ins for data that were not known: good for sampling, not checked enough for fitting.
        self.stand_ins: list[Program] = []
        # Compiled samplers by program, so that a second call starts at once.
        self.compiled: dict[Any, Any] = {}
        # Programs in which all rows share the localized values, each with the program it is the limit of.
        self._common: list[tuple[Program, Program]] = []

    def __repr__(self) -> str:
        what = f"localized in {names(self.request.sites)}" if self.request.sites else "as it is"
        return f"<{getattr(self.request.model, '__name__', 'model')} {what}>"

    @in_double_precision
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Fit the priors of the localized sites and the shared values to data.

        Call it like the model; arguments by row may be ``rb.parquet(path, columns=…)``. Besides the model's own arguments it takes, by keyword (a model's own argument of the
        same name wins):

        approx: how locals are integrated, an object such as ``rb.Quadrature(21)``.
        method: ``"direct"`` (Newton on the evidence) or ``"em"`` (the paper's variational EM).
        weights: how often each row counts.
        start: natural start values by name, ``{"w": …, "b.scale": …}``.
        max_steps, rtol: when to stop.
        chunk: rows a compiled chunk.
        progress: show a progress line.
        checkpoint: a folder from which the same call goes on after its process was killed.
        """
        options = self._take_options(kwargs)
        stored = stored_call(self.request.model, args, kwargs)
        arguments = read_arguments(self.request.model, args, kwargs) if stored is None else stored.arguments
        program, model, found = self.program_for(arguments)
        rows: Rows
        if stored is None:
            check_support(program, arguments)
            rows = rows_of_call(program, arguments, weights=options.get("weights"), chunk=options.get("chunk"))
        else:
            rows = stored.rows(program, options.get("weights"), options.get("chunk"))
        with checkpointed(rows, options.get("checkpoint"), self._description(program, model, options)) as kept:
            fit = fit_program(self, program, model, found, arguments, kept, options)
        warn_unless_converged(fit.outcome)
        return fit

    def _description(self, program: Program, model: RowModel, options: Mapping[str, Any]) -> str:
        """What is fitted and how, in words that differ where the answer would."""
        if options.get("checkpoint") is not None and options["method"] == "em":
            raise ModelError('checkpoint= goes with method="direct"; EM keeps what it needs beside the rows.')
        code = getattr(self.request.model, "__code__", None)
        shown = {
            "model": getattr(self.request.model, "__qualname__", type(self.request.model).__name__),
            "code": None
            if code is None
            else hashlib.sha256(code.co_code + repr(code.co_names).encode()).hexdigest()[:16],
            "local": program.request.sites,
            "parameters": model.parameters.labels,
            "held": program.request.fixed,
            **{name: options.get(name) for name in ("approx", "start", "max_steps", "rtol")},
        }
        return ", ".join(f"{name}: {value}" for name, value in shown.items())

    def _take_options(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        own = inspect.signature(self.request.model).parameters
        options = {name: kwargs.pop(name) for name in RESERVED if name in kwargs and name not in own}
        options["approx"] = options.get("approx") or self.approx
        method = options.setdefault("method", "direct")
        if method not in ("direct", "em"):
            raise ModelError(f'method is "direct" or "em"; got "{method}".')
        if options["approx"] is not None and not isinstance(options["approx"], Approximation):
            raise ModelError(
                f"approx takes an object such as rb.Quadrature(21) or rb.Laplace(); got {options['approx']!r}."
            )
        return options

    def program_for(self, arguments: Arguments) -> tuple[Program, RowModel, str]:
        """The program read for this kind of call; reading and checking is done once for each kind."""
        for known in self.programs_read:
            if known[0].is_like(arguments):
                return known
        _refuse_unusable(arguments)
        program = Program(self.request, arguments)
        model = program.row_model
        found = "nothing is localized"
        if program.size:
            model, found = detected(program, arguments)
        self.programs_read.append((program, model, found))
        return self.programs_read[-1]

    def known_program(self, request: Request, arguments: Arguments) -> tuple[Program, RowModel] | None:
        """A program that was read before for calls like this one, or its limit in which sites are shared."""
        localized = [(program, model) for program, model, _ in self.programs_read]
        limits = [(program, program.row_model) for _, program in self._common]
        for program, model in (*localized, *limits):
            asked = program.request
            if asked.sites == request.sites and asked.flat == request.flat and program.is_like(arguments):
                return program, model
        return None

    def common_program(self, program: Program, arguments: Arguments) -> Program:
        """A program with the localized sites shared by all rows; read once for each that is localized."""
        for localized, common in self._common:
            if localized is program:
                return common
        request = replace(program.request, sites=(), flat=program.request.sites, fixed=None)
        self._common.append((program, Program(request, arguments)))
        return self._common[-1][1]

    def row_model(self, *args: Any, **kwargs: Any) -> RowModel:
        """The functions of one row that the program comes to, for data like these."""
        with_context = in_double_precision(
            lambda: self.program_for(read_arguments(self.request.model, args, kwargs))[1]
        )
        return with_context()

    @property
    def program(self) -> Callable[..., None]:
        """The localized model as a NumPyro model with the same arguments, for NUTS, SVI or ArviZ.

        It samples hyperparameters (under `hyperprior`, or weak priors around the arguments as written), shared sites,
        and each localized site once a row; the rows' likelihood enters as a factor.
        """
        return as_numpyro(self)


def rows_of_call(program: Program, arguments: Arguments, **options: Any) -> ArrayRows:
    """The arguments that are rows, as rows in memory."""
    data = [leaf for leaf, row in zip(arguments.leaves, program.is_row) if row]
    labels = [label for label, row in zip(arguments.labels, program.is_row) if row]
    return make_rows(data, labels, **options)


_DETECTED: dict[str, RowModel] = {}


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


def _refuse_unusable(arguments: Arguments) -> None:
    lengths = [leaf.shape[0] for leaf in arguments.leaves if np.ndim(leaf) > 0]
    if lengths and not any(lengths):
        raise DataError("there are no rows to fit: the data are empty.")
    data = [leaf for leaf in arguments.leaves if np.ndim(leaf) > 0]
    labels = [label for label, leaf in zip(arguments.labels, arguments.leaves) if np.ndim(leaf) > 0]
    for leaf, label in zip(data, labels):
        make_rows([leaf], [label])
