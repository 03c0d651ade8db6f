"""Are an estimator's parameters usable? Checked when a fit begins, as scikit-learn asks."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from robustly._runtime.settings import is_real_number
from robustly.errors import FitError

LARGEST_SETTING, LEAST_ALPHA = 1e12, 1e-12


def _is_auto(model: Any) -> bool:
    """Whether the number of topics is to be found, and may be: only draws can join topics."""
    if not isinstance(model.n_components, str):
        return False
    if model.n_components != "auto":
        raise FitError(f'n_components is "{model.n_components}"; a whole number from 1 up or "auto" was expected.')
    if model.inference != "collapsed" or model.draws == 0:
        raise FitError(
            'n_components="auto" needs inference="collapsed" and draws; give a number of topics without them.'
        )
    if model.warm_start or model.seeds is not None:
        raise FitError(
            'n_components="auto" takes no warm_start and no seeds: topics change their numbers. Give a number.'
        )
    return True


def check_settings(model: Any) -> None:
    """Refuse parameters that cannot be meant, before any work is done."""
    if not isinstance(model.inference, str) or model.inference not in ("collapsed", "meanfield"):
        raise FitError(f'inference="{model.inference}" is not known. Choose "collapsed" or "meanfield".')
    for name, low in (("n_components", 1), ("max_iter", 1), ("sweeps", 1), ("draws", 0)):
        value = getattr(model, name)
        if (name in ("draws", "sweeps") and value is None) or (name == "n_components" and _is_auto(model)):
            continue
        if not isinstance(value, Integral) or isinstance(value, bool | np.timedelta64) or value < low:
            raise FitError(f"{name} is {value!r}; a whole number from {low} up was expected.")
    if not _is_auto(model) and model.n_components > 65535:
        raise FitError(f"n_components is {model.n_components}; at most 65535 topics can be told apart here.")
    if model.n_jobs is not None and (not isinstance(model.n_jobs, Integral) or model.n_jobs == 0):
        raise FitError(f"n_jobs is {model.n_jobs!r}; a number of threads, -1 or None (all) was expected.")
    for name in ("alpha", "smoothing", "total_samples"):
        value = getattr(model, name)
        if value is not None and not (is_real_number(value) and 0 <= value <= LARGEST_SETTING):
            raise FitError(f"{name} is {value!r}; a number from 0 to {LARGEST_SETTING:g}, or None, was expected.")
    if model.alpha is not None and model.alpha < LEAST_ALPHA:
        raise FitError(
            f"alpha is {model.alpha}, which lets no document use any topic. Give a number of {LEAST_ALPHA:g} or more, or None."
        )
    if not is_real_number(model.tol) or not model.tol >= 0:
        raise FitError(f"tol is {model.tol!r}; a number from 0 up was expected.")
    for name in ("learning_decay", "learning_offset", "validation_fraction"):
        value = getattr(model, name)
        if not is_real_number(value) and not (name == "validation_fraction" and value is None):
            raise FitError(f"{name} is {value!r}; a number was expected.")
    if not 0.5 <= model.learning_decay <= 1.0:
        raise FitError(f"learning_decay is {model.learning_decay!r}; between 0.5 and 1 online learning settles.")
    if not model.learning_offset >= 1.0:
        raise FitError(f"learning_offset is {model.learning_offset!r}; a number from 1 up was expected.")
    if model.validation_fraction is not None and not 0 < model.validation_fraction < 1:
        raise FitError(f"validation_fraction is {model.validation_fraction!r}; between 0 and 1 was expected.")
