"""An app: a model, data, training and a test of your own, which the lab federates and attacks.

    ostraka train --app my_task:app

names the module `my_task` and the object `app` in it, which has the four methods of `App`. It needs
nothing of Ostraka. The processes of the lab's clients import it, and those that test models; the
enclave and the workers do not: to them, a model is arrays with names.

An app is imported in several processes, which have to agree. So its methods draw random numbers
from the seed that they are given, and from nothing else.
"""

import importlib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ostraka.arrays import Float32
from ostraka.config import Manifest, Tensor
from ostraka.errors import ConfigError
from ostraka.model_file import named_tensors

Arrays: TypeAlias = dict[str, Float32]
"""A model: its arrays by name. The app may change them in place."""

_METHODS = ("model", "partitions", "train", "evaluate")
_SEE = "see “Your own model and data” in docs/lab.md"


class App(Protocol):
    """A task. A model may be given as any arrays that numpy reads, such as a state dict's."""

    def model(self, seed: int) -> Mapping[str, ArrayLike]:
        """The first model."""
        ...

    def partitions(self, clients: int, seed: int) -> Sequence[Any]:
        """The training data of every client, in any form that `train` takes."""
        ...

    def train(self, model: Arrays, part: Any, seed: int) -> Mapping[str, ArrayLike]:
        """The model after one client's training in one round. part: that client's data."""
        ...

    def evaluate(self, model: Arrays) -> tuple[float, float]:
        """The accuracy, from 0 to 1, and the loss on data that no client has trained on."""
        ...


def require_name(name: str) -> None:
    """Raises ConfigError unless this is the name of a module and of an object in it."""
    module, colon, attribute = name.partition(":")
    words = (*module.split("."), attribute)
    if not colon or not all(word.isidentifier() for word in words):
        raise ConfigError(
            f"an app is a module and an object in it, such as my_task:app; got {name!r}"
        )


def load(name: str) -> App:
    """Import an app, also from the current folder. Raises ConfigError, which says what to do."""
    require_name(name)
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        # Last, so that no file there hides a library.
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise ConfigError(f"{name}: {module_name} needs {missing.name}: install it") from None
        raise ConfigError(
            f"{name}: there is no module {missing.name}. All processes of a run import it by that "
            "name: run the command in the folder that holds it, or install it"
        ) from None
    except Exception as failed:
        raise ConfigError(f"{name}: {module_name} cannot be imported: {failed!r}") from failed
    return _checked(name, getattr(module, attribute, None))


def _checked(name: str, app: Any) -> App:
    if app is None:
        module, _, attribute = name.partition(":")
        raise ConfigError(f"{name}: the module {module} has no {attribute} ({_SEE})")
    if isinstance(app, type):
        raise ConfigError(f"{name} is a class: name an object of it, as in app = {app.__name__}()")
    lacking = [each for each in _METHODS if not callable(getattr(app, each, None))]
    if lacking:
        raise ConfigError(
            f"{name} lacks {', '.join(lacking)}: an app has {', '.join(_METHODS)} ({_SEE})"
        )
    found: App = app
    return found


class Federated:
    """An app whose models are vectors (d,), as a federation has them."""

    def __init__(self, name: str, *, clients: int, seed: int) -> None:
        """Import the app and split its data. Raises ConfigError."""
        self.name = name
        self._app = load(name)
        first = _arrays(self._app.model(seed), f"the first model of {name}")
        self.manifest = Manifest(tuple(Tensor(each, first[each].shape) for each in sorted(first)))
        self.first = self._vector(first, "the first model")
        self._parts = list(self._app.partitions(clients, seed))
        if len(self._parts) != clients:
            raise ConfigError(f"{name} has {len(self._parts)} partitions for {clients} clients")

    def trained(self, start: Float32, client: int, seed: int) -> Float32:
        """The model (d,) of this client after it has trained from this one. client: from 1."""
        trained = self._app.train(self._named(start), self._parts[client - 1], seed)
        return self._vector(_arrays(trained, f"the trained model of {self.name}"), "training")

    def score(self, vector: Float32) -> tuple[float, float | None]:
        """The accuracy and the loss of a model (d,). A loss that is not finite is None."""
        try:
            accuracy, loss = map(float, self._app.evaluate(self._named(vector)))
        except (TypeError, ValueError) as wrong:
            raise ConfigError(
                f"{self.name}: evaluate gives an accuracy and a loss, two numbers; {wrong}"
            ) from wrong
        if not 0 <= accuracy <= 1:
            raise ConfigError(f"{self.name}: an accuracy is from 0 to 1; got {accuracy}")
        return accuracy, loss if math.isfinite(loss) else None

    def _named(self, vector: Float32) -> Arrays:
        return named_tensors(self.manifest, np.array(vector, np.float32))

    def _vector(self, arrays: Arrays, what: str) -> Float32:
        expected = {each.name: each.shape for each in self.manifest.tensors}
        found = {name: array.shape for name, array in arrays.items()}
        if found != expected:
            raise ConfigError(f"{self.name}: {what} gives {found}; the model has {expected}")
        return np.concatenate([arrays[each.name].ravel() for each in self.manifest.tensors])


def _arrays(model: Mapping[str, ArrayLike], what: str) -> Arrays:
    try:
        arrays = {str(name): np.asarray(array, np.float32) for name, array in model.items()}
    except (AttributeError, TypeError, ValueError) as wrong:
        raise ConfigError(f"{what} is arrays of numbers by their names; {wrong}") from wrong
    if not arrays:
        raise ConfigError(f"{what} has no array")
    return arrays
