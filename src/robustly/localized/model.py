"""The localized model a user holds: fit it, fit its classical counterpart, or take it to another sampler."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from numpyro import handlers

from robustly._runtime.precision import in_double_precision
from robustly.approx import Approximation
from robustly.errors import DataError, FitError, LocalizeError, ModelError, did_you_mean, names
from robustly.fit.checkpoint import checkpointed
from robustly.fit.outcome import warn_unless_converged
from robustly.localized.by_group import groups_in_model, take_labels
from robustly.localized.detected import detected, detected_in_groups, rows_of_call
from robustly.localized.fitting import fit_program
from robustly.localized.sampling import as_numpyro
from robustly.localized.stored import stored_call
from robustly.model.program.arguments import Arguments, read_arguments
from robustly.model.program.checks import check_bounded, check_support
from robustly.model.program.fingerprint import Fingerprint
from robustly.model.program.modes import read_program
from robustly.model.program.one_copy import OneCopy
from robustly.model.program.read import Program
from robustly.model.program.request import Request
from robustly.model.row import RowModel
from robustly.result.fit import Fit
from robustly.result.views import view
from robustly.rows.arrays import ArrayRows
from robustly.rows.groups import Grouping, group_rows, side_by_side
from robustly.rows.store import Rows

RESERVED = ("approx", "method", "weights", "start", "max_steps", "rtol", "chunk", "progress", "checkpoint")


def localize(
    model: Callable[..., Any],
    sites: str | Sequence[str],
    rows: str | Sequence[str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    hyperprior: Mapping[str, Any] | None = None,
    *,
    by: str | None = None,
    plate: str | None = None,
    approx: Approximation | None = None,
    also: str | Sequence[str] = (),
    contaminated: bool = False,
) -> Localized:
    r"""Give every row its own copy of a latent site, drawn from the site's prior, and let that prior be fitted.

    The model stays as it is: it is called with one row at a time or, where that cannot be done (it takes sizes from its
    data, or reads them from outside), with all of them. The arguments of the named site's prior become
    hyperparameters, chosen to make the rows most probable with their own values integrated out
    (Wang & Blei, *A General Method for Robust Bayesian Modeling*). All other latent sites stay shared and get point
    estimates under their priors.

    A linear state-space model of statsmodels is taken too: ``rb.localize(components, "irregular")`` gives every *step* its
    own precision of the named disturbance (see :mod:`robustly.series`).

    Args:
        model: a NumPyro model whose likelihood is a product over rows: in a plate, or along the leading axis of what is
            observed.
        sites: the latent site, or sites, that may differ from row to row; up to ten dimensions together.
        rows: names of the arguments whose leading axis counts rows. Found from their shapes if not given.
        fixed: arguments of the prior that are not fitted, ``{"rate": 1.0}``, or by site ``{"b": {"loc": 0.0}}``.
        hyperprior: what is believed of fitted arguments, ``{"concentration": dist.Gamma(2, 0.1)}``; the fit is a MAP.
        by: name of the argument of ``fit`` that says to which group each row belongs; the rows of a group then share one copy
            of the sites. The model need not know of groups: an argument that it does not take is not passed to it. Of a site
            that has a value for every group already, ``a[group]``, one group's value is a unit's (see :func:`integrate`).
        plate: name of the row plate, if there are several and the outermost is not it.
        approx: how the rows' own values are integrated out; by default exactly if the site is conjugate (which is
            detected), else by quadrature.
        also: more sites to localize; ``"auto"`` for all whose prior follows a localized one, which cannot stay shared.
        contaminated: let the prior have a wide part beside the fitted one, for rows that do not belong; ``outlier_probability``
            then tells how probable that is of each row, whatever the prior (:mod:`robustly.localized.contaminated`).

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
    chosen = _texts_given(sites, "sites", "sites")
    if not chosen:
        raise LocalizeError(
            'name at least one site that may differ from row to row, as in localize(model, "precision").'
        )
    if _is_statespace(model):
        if by is not None:
            raise LocalizeError("by= is for NumPyro models; the steps of a series are its units. Leave it out.")
        if contaminated:
            raise LocalizeError(
                "contaminated= is for NumPyro models; steps of a series always have a law in two parts for outlier_probability. "
                "Leave it out."
            )
        return _localized_series(model, chosen, rows, fixed, hyperprior, plate, approx)
    if not callable(model):
        raise LocalizeError(
            f"localize takes a NumPyro model (a function) or a state-space model of statsmodels; got a {type(model).__name__}. A "
            'series of values needs a model: statsmodels.api.tsa.UnobservedComponents(values, level="llevel").'
        )
    if also is not None and also != "auto":
        chosen = (*chosen, *_texts_given(also, "also", "sites"))
    for word, one in (("by", by), ("plate", plate)):
        if one is not None and not isinstance(one, str):
            raise LocalizeError(f"{word}= is a name; got {one!r}.")
    request = Request(
        undone(model),
        chosen,
        None if rows is None else _texts_given(rows, "rows", "arguments"),
        _by_site(fixed, chosen, "fixed"),
        _by_site(hyperprior, chosen, "hyperprior"),
        plate,
    )
    return Localized(replace(request, follow=also == "auto"), approx, by, contaminated)


def undone(model: Any) -> Any:
    """The model without reparameterisations wrapped around it, which change how it is sampled but not what it says."""
    while isinstance(model, handlers.reparam):
        model = model.fn
    return model


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
    if not callable(model):
        raise LocalizeError(
            f"localize takes a NumPyro model (a function) or a state-space model of statsmodels; got a {type(model).__name__}. A "
            'series of values needs a model: statsmodels.api.tsa.UnobservedComponents(values, level="llevel").'
        )
    stated = None if rows is None else _texts_given(rows, "rows", "arguments")
    return Localized(Request(undone(model), (), stated, plate=plate), None)


def _texts_given(given: Any, word: str, what: str) -> tuple[str, ...]:
    """One name or several."""
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    for one in found:
        if not isinstance(one, str):
            raise LocalizeError(f"{what} are named by their texts; got {one!r} in {word}=.")
    return found


def _by_site(given: Mapping[str, Any] | None, sites: Sequence[str], word: str) -> dict[str, dict[str, Any]]:
    """``{"rate": 1.0}``, ``{"b": {"rate": 1.0}}`` or ``{"b.rate": 1.0}`` as arguments by site."""
    found: dict[str, dict[str, Any]] = {}
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise LocalizeError(f"{word}= is a table of the prior's arguments by name; got {given!r}.")
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


@dataclass(eq=False)
class _Known:
    """What has been read and compiled of a model."""

    programs: list[tuple[Program, RowModel, str]] = field(default_factory=list)
    stand_ins: list[Program] = field(default_factory=list)
    """Programs read with stand-ins for data that were not known: good for sampling, not checked enough for fitting."""
    samplers: dict[Any, Any] = field(default_factory=dict)
    """Compiled samplers by program, so that a second call starts at once."""
    common: list[tuple[Program, Program]] = field(default_factory=list)
    """Programs in which all rows share the localized values, each with the program it is the limit of."""
    grouped: list[tuple[Program, RowModel, str]] = field(default_factory=list)
    """Models of groups by the program of a row they were made from."""


MOST_KNOWN = 8
_KNOWN: dict[Fingerprint, _Known] = {}


class Localized:
    """A model with localized sites, ready to be fitted. Made by :func:`localize`."""

    def __init__(
        self, request: Request, approx: Approximation | None, by: str | None = None, contaminated: bool = False
    ) -> None:
        self.request = request
        self.approx = approx
        self.by = by
        self.contaminated = contaminated
        self.inner: Grouping | None = None
        """Groups that the model has itself, once a call has told them."""

    @property
    def _fingerprint(self) -> Fingerprint:
        asked = self.request
        told = (asked.sites, asked.rows, asked.fixed, asked.plate, asked.flat, asked.follow, asked.as_written, self.by)
        believed = jax.tree.flatten(asked.hyperprior)
        return Fingerprint((asked.model, told, list(believed[0]), repr(believed[1])))

    @property
    def _known(self) -> _Known:
        """What was read of this model, in whichever cell it was defined; another model if what it reads has changed."""
        key = self._fingerprint
        known = _KNOWN.pop(key, None) or _Known()
        _KNOWN[key] = known
        while len(_KNOWN) > MOST_KNOWN:
            _KNOWN.pop(next(iter(_KNOWN)))
        return known

    @property
    def programs_read(self) -> list[tuple[Program, RowModel, str]]:
        return self._known.programs

    @property
    def stand_ins(self) -> list[Program]:
        return self._known.stand_ins

    @property
    def compiled(self) -> dict[Any, Any]:
        return self._known.samplers

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
        if self.inner is None and (self.by is not None or self.request.as_written):
            unit = self._by_inner_groups(args, dict(kwargs))
            if unit is not None:
                return unit.fit(*args, **{name: value for name, value in kwargs.items() if name in unit.taken})
        known = self._known
        before = len(known.programs)
        try:
            fit = self._fit(args, dict(kwargs), known)
        except FitError:
            if len(known.programs) > before:
                raise
            # What was found of a model by other data may not hold of these: read it anew, for what that says of them.
            known.programs.clear()
            fit = self._fit(args, kwargs, known)
        # What running the model itself changed outside of it makes it no other model.
        _KNOWN[self._fingerprint] = known
        warn_unless_converged(fit.outcome)
        return fit

    def _fit(self, args: Sequence[Any], kwargs: dict[str, Any], known: _Known) -> Fit:
        options = self._take_options(kwargs)
        groups, labels = self.inner, None
        if groups is None and self.by is not None:
            labels = take_labels(self.request.model, self.by, args, kwargs)
        stored = stored_call(self.request.model, args, kwargs)
        arguments = read_arguments(self.request.model, args, kwargs) if stored is None else stored.arguments
        program, model, found = self.program_for(arguments, known)
        rows: Rows
        weights, chunk = options.get("weights"), options.get("chunk")
        notes: tuple[str, ...] = ()
        if stored is None:
            check_support(program, arguments)
            rows = here = rows_of_call(program, arguments, weights=weights, chunk=chunk)
            if labels is not None:
                groups = group_rows(labels, self.by or "")
            if groups is not None:
                rows = self._side_by_side(here, groups)
        elif labels is None:
            rows = stored.rows(program, weights, chunk)
        else:
            rows, groups, notes = stored.units(program, weights, chunk, labels, self.by or "")
        if groups is not None:
            model, found = self._of_group(program, rows)
        with checkpointed(rows, options.get("checkpoint"), self._description(program, model, options)) as kept:
            fit = fit_program(self, program, model, found, arguments, kept, options, groups)
        return replace(fit, notes=(*fit.notes, *notes)) if notes else fit

    @property
    def taken(self) -> set[str]:
        """What :meth:`fit` takes by keyword."""
        return {*inspect.signature(self.request.model).parameters, *RESERVED}

    def _by_inner_groups(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Localized | None:
        """The same with one group's values of the sites in the place of all, where the model has them by group already."""
        self._take_options(kwargs)
        groups = groups_in_model(self.request, self.by, args, kwargs)
        if groups is None:
            return None
        model = OneCopy(self.request.model, self.request.sites)
        found = Localized(replace(self.request, model=model), self.approx, groups.name, self.contaminated)
        found.inner = groups
        return found

    def _side_by_side(self, rows: ArrayRows, groups: Grouping) -> ArrayRows:
        if groups.row_count != len(rows):
            raise DataError(
                f"{self.by} has {groups.row_count} values, but there are {len(rows)} rows. Give one value a row."
            )
        return side_by_side(rows, groups)

    def _of_group(self, program: Program, units: Rows) -> tuple[RowModel, str]:
        """The model of a group, and what was found of it."""
        for known, model, found in self._known.grouped:
            if known is program:
                return model, found
        self._known.grouped.append((program, *detected_in_groups(program, units)))
        return self._known.grouped[-1][1:]

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
        if self.contaminated and (method == "em" or options.get("checkpoint") is not None):
            raise ModelError('contaminated=True goes with method="direct" and without checkpoint=.')
        if options["approx"] is not None and not isinstance(options["approx"], Approximation):
            raise ModelError(
                f"approx takes an object such as rb.Quadrature(21) or rb.Laplace(); got {options['approx']!r}."
            )
        return options

    def program_for(self, arguments: Arguments, read_before: _Known | None = None) -> tuple[Program, RowModel, str]:
        """The program read for this kind of call; reading and checking is done once for each kind.

        `read_before` is what is known of the model, where the caller has looked it up.
        """
        read = (self._known if read_before is None else read_before).programs
        for known in read:
            if known[0].is_like(arguments):
                return known
        program = read_program(self.request, arguments)
        model = program.row_model
        found = "nothing is localized"
        if program.size:
            if self.by is None:  # the rows of a group do not all have a residual of 0
                check_bounded(program)
            model, found = detected(program, arguments)
        read.append((program, model, found))
        return read[-1]

    def known_program(self, request: Request, arguments: Arguments) -> tuple[Program, RowModel] | None:
        """A program that was read before for calls like this one, or its limit in which sites are shared."""
        localized = [(program, model) for program, model, _ in self.programs_read]
        limits = [(program, program.row_model) for _, program in self._known.common]
        for program, model in (*localized, *limits):
            asked = program.request
            if asked.sites == request.sites and asked.flat == request.flat and program.is_like(arguments):
                return program, model
        return None

    def common_program(self, program: Program, arguments: Arguments) -> Program:
        """A program with the localized sites shared by all rows; read once for each that is localized."""
        known = self._known.common
        for localized, common in known:
            if localized is program and (not common.is_whole or common.is_like(arguments)):
                return common
        request = replace(program.request, sites=(), flat=program.request.sites, fixed=None)
        known.append((program, type(program)(request, arguments)))
        return known[-1][1]

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
        return self.request.model if self.request.as_written else as_numpyro(self)
