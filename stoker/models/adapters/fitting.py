"""Checks an adapter's tensors against the model that it adapts, and reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Linear

from stoker.models.adapters.lora import Lora, Matrices
from stoker.models.adapters.stored import StoredWeights

_CONVOLUTION = "Conv1D"
"""transformers' linear layer with transposed weights, as in GPT-2."""
_DEEPEST = 3
"""Maximum number of leading parts of a module's name that may belong to a model that contains the
base.
"""


class AdapterUnfitError(Exception):
    """The adapter does not fit this model. The message is for its owner."""


@dataclass(frozen=True, eq=False)
class BaseModel:
    """The model that adapters are fitted to."""

    model: Any
    stored: StoredWeights | None = None
    """Weights of a model whose parameters are on the meta device."""

    def module_names(self, settings: Lora) -> dict[str, str]:
        """Maps an adapter's module names to the model's own.

        The adapter may have been trained on a model that contains this one, or on a part of it.
        Then all names have another prefix.
        """
        whole = (*settings.saved, *settings.copied)
        adapter_modules = {*settings.modules, *(name.rpartition(".")[0] for name in whole)}
        known = {name for name, _ in self.model.named_modules()}
        prefixes = (getattr(self.model, "base_model_prefix", ""), "model")
        around = [f"{prefix}." for prefix in prefixes if prefix]
        for depth in range(_DEEPEST + 1):
            inner = {name: ".".join(name.split(".")[depth:]) for name in adapter_modules}
            for prefix in ("", *around):
                if all(name and f"{prefix}{name}" in known for name in inner.values()):
                    return {name: f"{prefix}{part}" for name, part in inner.items()}
        lost = next((name for name in sorted(adapter_modules) if name not in known), "")
        raise AdapterUnfitError(
            f"The base has no module {lost[:120]!a}: the adapter is for another base."
        )

    def read_matrices(
        self, name: str, matrices: Matrices, file: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns A transposed, (in, rank), and scale · B transposed, (rank, out)."""
        layer = self._layer(name)
        inputs, outputs = _size(layer)
        if (matrices.inputs, matrices.outputs) != (inputs, outputs):
            raise AdapterUnfitError(
                f"The adapter's matrices of {name} are for {matrices.inputs} inputs and "
                f"{matrices.outputs} outputs, but the base has {inputs} and {outputs}."
            )
        weight = layer.weight
        down = file.get_tensor(matrices.down).float()
        up = file.get_tensor(matrices.up).float() * matrices.scale
        return _converted(down.T.contiguous(), weight), _converted(up.T.contiguous(), weight)

    def read_layers(
        self, settings: Lora, names: Mapping[str, str], file: Any
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
        """Returns weight and bias of the linear layers that replace the model's.

        Args:
            names: see `module_names`.
        """
        layers: dict[str, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for parameter, (tensor, shape) in settings.saved.items():
            module, _, kind = parameter.rpartition(".")
            name = names[module]
            layer = self._layer(name)
            target = getattr(layer, kind, None) if kind in ("weight", "bias") else None
            if type(layer) is not Linear or target is None:
                raise AdapterUnfitError(
                    f"The adapter replaces {name}, which is not a linear layer with this "
                    "parameter in the base."
                )
            if tuple(shape) != tuple(target.shape):
                raise AdapterUnfitError(
                    f"The adapter's {name} has the shape {[*shape]}, but the base's has "
                    f"{[*target.shape]}."
                )
            value = _converted(file.get_tensor(tensor), target)
            weight, bias = layers.get(name) or (
                self._weight(f"{name}.weight"),
                self._weight(f"{name}.bias") if hasattr(layer.bias, "shape") else None,
            )
            layers[name] = (value, bias) if kind == "weight" else (weight, value)
        return layers

    def check_copies(self, settings: Lora, names: Mapping[str, str], file: Any) -> None:
        """Raises `AdapterUnfitError` if a layer that the adapter copies differs from the model's.

        Args:
            names: see `module_names`.
        """
        for parameter, (tensor, _) in settings.copied.items():
            name = names[parameter.rpartition(".")[0]]
            weight = self._weight(f"{name}.weight")
            value = file.get_tensor(tensor).to(weight.device, weight.dtype)
            if value.shape != weight.shape or not torch.equal(value, weight):
                raise AdapterUnfitError(
                    f"The adapter has its own {name}, for example because words were added to "
                    "the vocabulary. Merge it into the base."
                )

    def difference(
        self, name: str, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Returns a whole layer as two matrices to add to the model's, and the constants between
        them.
        """
        change = weight.float() - self._weight(f"{name}.weight").float()
        outputs, inputs = change.shape
        if outputs <= inputs:
            down, up = change.T, torch.eye(outputs)
        else:
            down, up = torch.eye(inputs), change.T
        moved = torch.zeros(outputs)
        if bias is not None:
            moved = bias.float() - self._weight(f"{name}.bias").float()
        # An additional column, which a constant sets to one: its row is the bias.
        down = torch.cat([down, torch.zeros(inputs, 1)], dim=1)
        constants = torch.zeros(down.shape[1])
        constants[-1] = 1
        return (down.contiguous(), torch.cat([up, moved[None]]).contiguous()), constants

    def _weight(self, name: str) -> torch.Tensor:
        """Returns the model's own parameter. Raises `AdapterUnfitError` if no file has it."""
        module, _, kind = name.rpartition(".")
        parameter = getattr(self.model.get_submodule(module), kind)
        if parameter.device.type != "meta":
            return parameter
        stored = self.stored.get(name) if self.stored else None
        if stored is None or stored.shape != parameter.shape:
            raise AdapterUnfitError(
                f"The base's {name} cannot be read for a comparison with the adapter's."
            )
        return stored

    def _layer(self, name: str) -> Any:
        layer = self.model.get_submodule(name)
        # A subclass may compute with its weights directly, without a call of the layer.
        if type(layer) is not Linear and type(layer).__name__ != _CONVOLUTION:
            raise AdapterUnfitError(
                f"The adapter changes {name}, a {type(layer).__name__}. Only linear layers "
                "are supported."
            )
        return layer


def _converted(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Converts a value to a parameter's device and dtype. Float32 if the parameter is on the meta
    device.
    """
    if parameter.device.type == "meta":
        return value.float()
    return value.to(parameter.device, parameter.dtype)


def _size(layer: Any) -> tuple[int, int]:
    """Returns the numbers of inputs and outputs of a layer."""
    first, other = layer.weight.shape
    return (other, first) if type(layer) is Linear else (first, other)
