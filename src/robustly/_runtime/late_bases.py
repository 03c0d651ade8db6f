"""How are estimators scikit-learn's without its import? They take its classes for bases when a process has them.

Importing ``sklearn.base`` takes as long as all else that a first regression does, SciPy's and pandas' imports among it. An
:class:`Estimator` is there without it and derives from ``sklearn.base.BaseEstimator`` from the moment in which anybody has imported
that, or has asked the estimator for something that only scikit-learn gives (``score``, ``set_params``, a text of itself). Nobody can
tell the difference: to hold a class of scikit-learn's one has to import it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

HOME = "sklearn.base"


class _Unasked:
    """What an estimator derives from until then: all that it lacks is looked for in scikit-learn."""

    def __getattr__(self, name: str) -> Any:
        # Names that end so are there after fitting, and are asked for to see whether they are.
        if name.endswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        importlib.import_module(HOME)
        return getattr(self, name)

    def __repr__(self) -> str:
        importlib.import_module(HOME)
        return repr(self)


class _Nothing:
    """Python exchanges bases, but not `object` itself."""


if TYPE_CHECKING:
    from sklearn.base import BaseEstimator as Estimator
    from sklearn.base import ClassifierMixin as Classifier
    from sklearn.base import RegressorMixin as Regressor
else:

    class Estimator(_Unasked):
        """``sklearn.base.BaseEstimator``."""

    class Regressor(_Nothing):
        """``sklearn.base.RegressorMixin``."""

    class Classifier(_Nothing):
        """``sklearn.base.ClassifierMixin``."""


BASES: dict[type, str] = {Regressor: "RegressorMixin", Classifier: "ClassifierMixin", Estimator: "BaseEstimator"}


def _take_bases(home: ModuleType) -> None:
    for ours, name in BASES.items():
        ours.__bases__ = (getattr(home, name),)
    _tell_bases(Estimator, set())


def _tell_bases(ours: type, told: set[type]) -> None:
    """What a base does with classes as they are made, for those that were made before: methods for metadata routing."""
    each: list[Any] = [ours, *ours.__subclasses__()]
    for one in each:
        if one not in told:
            told.add(one)
            super(one, one).__init_subclass__()
            _tell_bases(one, told)


class _AtImport(MetaPathFinder):
    """Waits for the import of scikit-learn, by whomever."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != HOME:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_tell(module: ModuleType) -> None:
            run(module)
            _take_bases(module)
            sys.meta_path.remove(self)

        spec.loader.exec_module = run_and_tell  # type: ignore[method-assign]
        return spec


if HOME in sys.modules:
    _take_bases(importlib.import_module(HOME))
else:
    sys.meta_path.insert(0, _AtImport())
