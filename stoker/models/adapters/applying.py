"""Adds adapters to a torch model while it runs: each row of a batch gets its own.

The base's weights stay as they are. A linear layer that any adapter has matrices for is watched by
a hook, which adds B A x to the rows whose adapter it is: rows of the base and of any number of
adapters share the pass of everything else.
"""

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch.nn import Linear

from stoker.models.adapters import lora
from stoker.models.adapters.lora import Lora
from stoker.models.adapters.stored import StoredWeights

_CONVOLUTION = "Conv1D"
"""transformers' linear layer whose weights lie the other way, as in GPT-2."""
_DEEPEST = 3
"""Leading parts of a module's name that may be those of a model around ours."""


class UnfitError(Exception):
    """An adapter that is none for this model; the message is for its owner."""


def adapters_of(model: Any, folder: str, most_bytes: int) -> "Adapters | None":
    """Those of a replica's model, where requests may name any: where there is a folder."""
    return Adapters(model, Path(folder), most_bytes) if folder else None


@dataclass(frozen=True, eq=False)
class Adapter:
    """One that is loaded. It stays whole while anything holds it."""

    name: str
    modules: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    """By the model's own names: A transposed, (in, rank), and scale · B transposed, (rank, out)."""
    saved: Mapping[str, tuple[torch.Tensor, torch.Tensor | None]]
    """Linear layers that take the place of the model's: weight and bias."""
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """(rank,), added between the two matrices of a module: of those that stand for a bias."""

    @property
    def nbytes(self) -> int:
        pairs = (*self.modules.values(), *self.saved.values())
        return sum(one.nbytes for pair in pairs for one in pair if one is not None)


class Adapters:
    """Those of one model, loaded when they are first asked for and dropped for others.

    Any thread loads them; the one that runs the model uses them.
    """

    def __init__(self, model: Any, folder: Path, most_bytes: int) -> None:
        """
        Args:
            folder: each lies below it in a folder of its own.
            most_bytes: what those that are kept may take; the last one is kept in any case.
        """
        self._model = model
        self._folder = folder
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, Adapter] = OrderedDict()
        """Least recently used first."""
        self._lock = threading.Lock()
        self._stored: StoredWeights | None = None
        self._places: AbstractSet[str] | None = None
        self._hooked: WeakSet[Any] = WeakSet()
        self._rows: _Rows | None = None

    def rebase(self, model: Any, stored: StoredWeights, places: AbstractSet[str]) -> None:
        """Have those that are loaded from now on be of the same model as a graph.

        Args:
            model: what it is made of: its weights are dropped, and by no one else, since another
                thread may compare an adapter with them at this moment.
            stored: its weights, of which layers that take the place of its own are told apart.
            places: the modules that the graph can have something added to.
        """
        with self._lock:
            self._model, self._stored, self._places = model.to("meta"), stored, places
            self._kept.clear()

    def check_all(self, model: Any, stored: StoredWeights, places: AbstractSet[str]) -> None:
        """Raise `UnfitError` where one that is there could not be had after `rebase`."""
        trial = Adapters(model, self._folder, 0)
        trial._stored, trial._places = stored, places
        for folder in sorted(self._folder.iterdir()):
            if not folder.name.startswith(".") and (folder / lora.WEIGHTS).exists():
                trial.get(folder.name)

    def get(self, name: str) -> Adapter:
        """Raises `UnfitError` where it does not fit the model, and `OSError`."""
        with self._lock:
            found = self._kept.get(name)
            if found is None:
                found = self._kept[name] = self._loaded(name)
            self._kept.move_to_end(name)
            while len(self._kept) > 1 and self._taken > self._most_bytes:
                self._kept.popitem(last=False)
        return found

    @property
    def _taken(self) -> int:
        return sum(one.nbytes for one in self._kept.values())

    @contextlib.contextmanager
    def rows(self, model: Any, given: Sequence[Adapter | None]) -> Generator[None]:
        """Have a torch model's passes be those of rows with these adapters, within the block."""
        if not any(given):
            yield
            return
        self._rows = _Rows(given)
        for name in {name for one in given if one for name in (*one.modules, *one.saved)}:
            self._hook(name, model.get_submodule(name))
        try:
            yield
        finally:
            self._rows = None

    def _hook(self, name: str, module: Any) -> None:
        if module in self._hooked:
            return
        self._hooked.add(module)

        def added(_module: Any, given: tuple[Any, ...], output: torch.Tensor) -> None:
            if self._rows:
                self._rows.add(name, given[0], output)

        module.register_forward_hook(added)

    def _loaded(self, name: str) -> Adapter:
        from safetensors import safe_open

        folder = self._folder / name
        library: Any = safe_open
        with library(str(folder / lora.WEIGHTS), framework="pt") as file:
            names: list[str] = list(file.keys())
            shapes = {one: tuple(file.get_slice(one).get_shape()) for one in names}
            config: Any = json.loads((folder / lora.CONFIG).read_text())
            settings = lora.read(config, shapes)
            if settings.alone:
                raise UnfitError(settings.alone)
            self._check(settings)
            own = _own_names(self._model, settings)
            modules = {
                own[module]: self._pair(own[module], one, file)
                for module, one in settings.modules.items()
            }
            saved = self._saved(settings, own, file)
            self._check_copies(settings, own, file)
        return self._kept_of(Adapter(name, modules, saved))

    def _check(self, settings: Lora) -> None:
        """Raise `UnfitError` for what fits the model and is not for what runs it."""

    def _kept_of(self, one: Adapter) -> Adapter:
        """For a graph: with layers that take the place of the model's as what they add to these."""
        if self._places is None:
            return one
        for name in (*one.modules, *one.saved):
            if name not in self._places:
                raise UnfitError(
                    f"OpenVINO's form of the base has no place for {name}: set the base's 'engine' "
                    "to 'torch'."
                )
        modules, constants = dict(one.modules), dict[str, torch.Tensor]()
        for name, (weight, bias) in one.saved.items():
            modules[name], constants[name] = self._difference(name, weight, bias)
        return Adapter(one.name, modules, {}, constants)

    def _difference(
        self, name: str, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """A whole layer as two matrices to add to the model's, and what comes between them."""
        change = weight.float() - self._weight(f"{name}.weight").float()
        outputs, inputs = change.shape
        if outputs <= inputs:
            down, up = change.T, torch.eye(outputs)
        else:
            down, up = torch.eye(inputs), change.T
        moved = torch.zeros(outputs)
        if bias is not None:
            moved = bias.float() - self._weight(f"{name}.bias").float()
        # One more column, of which a constant makes a one: its row is the bias.
        down = torch.cat([down, torch.zeros(inputs, 1)], dim=1)
        constants = torch.zeros(down.shape[1])
        constants[-1] = 1
        return (down.contiguous(), torch.cat([up, moved[None]]).contiguous()), constants

    def _weight(self, name: str) -> torch.Tensor:
        """The model's own parameter. Raises `UnfitError` where it is in no file."""
        module, _, kind = name.rpartition(".")
        there = getattr(self._model.get_submodule(module), kind)
        if there.device.type != "meta":
            return there
        found = self._stored.get(name) if self._stored else None
        if found is None or found.shape != there.shape:
            raise UnfitError(f"The base's own {name} cannot be read to compare the adapter's with.")
        return found

    def _pair(self, name: str, one: lora.Matrices, file: Any) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self._layer(name)
        inputs, outputs = _size(layer)
        if (one.inputs, one.outputs) != (inputs, outputs):
            raise UnfitError(
                f"Its matrices of {name} are for {one.inputs} inputs and {one.outputs} outputs; "
                f"the base has {inputs} and {outputs} there."
            )
        weight = layer.weight
        down = file.get_tensor(one.down).float()
        up = file.get_tensor(one.up).float() * one.scale
        return _placed(down.T.contiguous(), weight), _placed(up.T.contiguous(), weight)

    def _saved(
        self, settings: Lora, own: Mapping[str, str], file: Any
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
        found: dict[str, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for parameter, (tensor, shape) in settings.saved.items():
            module, _, kind = parameter.rpartition(".")
            name = own[module]
            layer = self._layer(name)
            there = getattr(layer, kind, None) if kind in ("weight", "bias") else None
            if type(layer) is not Linear or there is None:
                raise UnfitError(f"Its own {name} takes the place of what is none here.")
            if tuple(shape) != tuple(there.shape):
                raise UnfitError(
                    f"Its own {name} has the shape {[*shape]}; the base's has {[*there.shape]}."
                )
            value = _placed(file.get_tensor(tensor), there)
            weight, bias = found.get(name) or (
                self._weight(f"{name}.weight"),
                self._weight(f"{name}.bias") if hasattr(layer.bias, "shape") else None,
            )
            found[name] = (value, bias) if kind == "weight" else (weight, value)
        return found

    def _check_copies(self, settings: Lora, own: Mapping[str, str], file: Any) -> None:
        for parameter, (tensor, _) in settings.copied.items():
            name = own[parameter.rpartition(".")[0]]
            weight = self._weight(f"{name}.weight")
            value = file.get_tensor(tensor).to(weight.device, weight.dtype)
            if value.shape != weight.shape or not torch.equal(value, weight):
                raise UnfitError(
                    f"It brings a {name} of its own, as where words were added to a vocabulary: "
                    "merge it into the base."
                )

    def _layer(self, name: str) -> Any:
        layer = self._model.get_submodule(name)
        # A subclass may compute by its weights alone, without being called.
        if type(layer) is not Linear and type(layer).__name__ != _CONVOLUTION:
            raise UnfitError(
                f"It adapts {name}, a {type(layer).__name__}: only linear layers are served."
            )
        return layer


class _Rows:
    """A batch: which rows are whose."""

    def __init__(self, given: Sequence[Adapter | None]) -> None:
        self._size = len(given)
        by_adapter: dict[Adapter, list[int]] = {}
        for row, one in enumerate(given):
            if one is not None:
                by_adapter.setdefault(one, []).append(row)
        self._parts = [(one, torch.tensor(rows)) for one, rows in by_adapter.items()]

    def add(self, name: str, given: torch.Tensor, output: torch.Tensor) -> None:
        """To the output of a layer, in place."""
        parts = [part for part in self._parts if name in part[0].modules or name in part[0].saved]
        if not parts:
            return
        rows_in, rows_out = self._by_row(name, given), self._by_row(name, output)
        for adapter, rows in parts:
            is_all = len(rows) == self._size
            own = rows_in if is_all else rows_in.index_select(0, rows.to(given.device))
            if name in adapter.saved:
                found = torch.nn.functional.linear(own, *adapter.saved[name])
                if is_all:
                    rows_out.copy_(found)
                else:
                    rows_out.index_copy_(0, rows.to(output.device), found)
                continue
            down, up = adapter.modules[name]
            found = own @ down.to(own)
            if name in adapter.constants:
                found = found + adapter.constants[name].to(own)
            found = found @ up.to(own)
            if is_all:
                rows_out.add_(found)
            else:
                rows_out.index_add_(0, rows.to(output.device), found)

    def _by_row(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """(…, features) → (rows, …, features), a view."""
        if value.shape[0] == self._size:
            return value
        # Some models put the tokens of all rows below one another.
        if value.dim() == 2 and value.shape[0] % self._size == 0:
            return value.view(self._size, -1, value.shape[1])
        raise UnfitError(f"The base computes {name} for all rows at once: it cannot be adapted.")


def _placed(value: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
    """Where and as what another one is; in single precision beside one that is nowhere."""
    if beside.device.type == "meta":
        return value.float()
    return value.to(beside.device, beside.dtype)


def _size(layer: Any) -> tuple[int, int]:
    """Inputs and outputs."""
    one, other = layer.weight.shape
    return (other, one) if type(layer) is Linear else (one, other)


def _own_names(model: Any, settings: Lora) -> dict[str, str]:
    """The model's own names of the modules that an adapter has something for.

    It may have been trained on a model around this one, or on what this one is around: then all of
    the names begin otherwise.
    """
    whole = (*settings.saved, *settings.copied)
    wanted = {*settings.modules, *(name.rpartition(".")[0] for name in whole)}
    known = {name for name, _ in model.named_modules()}
    around = [f"{one}." for one in (getattr(model, "base_model_prefix", ""), "model") if one]
    for depth in range(_DEEPEST + 1):
        inner = {name: ".".join(name.split(".")[depth:]) for name in wanted}
        for prefix in ("", *around):
            if all(name and f"{prefix}{name}" in known for name in inner.values()):
                return {name: f"{prefix}{one}" for name, one in inner.items()}
    lost = next((name for name in sorted(wanted) if name not in known), "")
    raise UnfitError(f"The base has no module {lost[:120]!a}: the adapter is for another one.")
