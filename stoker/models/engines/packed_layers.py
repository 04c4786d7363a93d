"""Runs the layers of a text encoder on packed rows, although the model is called with padded rows.

Embeddings and heads run on padded rows, as usual. They are a small part of a model, and they may
read a row's first token or its mask. The layers compute only real tokens.
"""

import itertools
import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch.nn import Module, ModuleList

from stoker.models.engines.packed_attention import NAME, NotPackableError, packed_pass
from stoker.models.engines.packed_rows import RowPacking
from stoker.models.engines.packing import TokenPacking

_REPLACED = "sdpa"
"""Attention function that `stoker_packed` replaces."""


class PackedLayers:
    """The layers of a model that can be run on packed rows."""

    def __init__(self, layers: ModuleList, configs: list[Any]) -> None:
        """
        Args:
            configs: configurations that select the attention function of the model's modules.
        """
        self._layers = layers
        self._configs = configs

    @classmethod
    def of(cls, model: Any) -> "PackedLayers | None":
        """Returns the layers of a model. None if it has several lists of layers or none, or if its
        attention cannot be replaced.

        This does not prove that the layers give the same results on a packed row. `sharing`
        compares the results.
        """
        config = getattr(model, "config", None)
        stacks = list(_stacks(model)) if isinstance(model, Module) else []
        if len(stacks) != 1 or getattr(config, "output_hidden_states", False):
            return None
        configs = {
            id(config): config
            for module in model.modules()
            if getattr(config := getattr(module, "config", None), "_attn_implementation", None)
            == _REPLACED
        }
        return cls(stacks[0], list(configs.values())) if configs else None

    def head_share(self, model: Module) -> float:
        """Returns the size of the model's linear layers outside these layers, as a share of
        theirs.
        """
        inside = _linear_size(self._layers)
        return _linear_size(model) / inside - 1 if inside else math.inf

    @contextmanager
    def running(self, packing: TokenPacking | RowPacking | None) -> Generator[None]:
        """Runs the layers on packed rows within the block. If `packing` is None, on padded rows.

        Raises `NotPackableError` if a layer does not call the attention function.
        """
        if packing is None:
            yield
            return
        with ExitStack() as stack, packed_pass(packing) as current:
            pack = _packed_arguments(packing)
            for layer in self._layers:
                hook = layer.register_forward_pre_hook(pack, with_kwargs=True)
                stack.callback(hook.remove)
            exit_hook = self._layers[-1].register_forward_hook(_padded_output(packing))
            stack.callback(exit_hook.remove)
            for config in self._configs:
                config._attn_implementation = NAME
                stack.callback(setattr, config, "_attn_implementation", _REPLACED)
            yield
            if current.calls < len(self._layers):
                raise NotPackableError("the layers compute attention in their own way")


def _linear_size(module: Module) -> int:
    """Returns the number of weights in a module's linear layers."""
    linear = (part for part in module.modules() if isinstance(part, torch.nn.Linear))
    return sum(part.weight.numel() for part in linear)


def _stacks(model: Module) -> Iterator[ModuleList]:
    """Yields the model's lists of layers, without lists that are part of a layer."""
    for child in model.children():
        if isinstance(child, ModuleList) and _is_stack(child):
            yield child
        else:
            yield from _stacks(child)


def _is_stack(modules: ModuleList) -> bool:
    kinds = {type(module) for module in modules}
    return len(kinds) == 1 and any(True for _ in modules[0].children())


def _packed_arguments(packing: TokenPacking | RowPacking) -> Any:
    positions: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    """Values with one row for all samples, such as position embeddings, and their packed form. Maps
    the id of a value to both, because all layers receive the same values.
    """

    def packed(value: torch.Tensor) -> torch.Tensor:
        if value.shape[:2] != (1, packing.width):
            return packing.packed(value)
        if id(value) not in positions:
            positions[id(value)] = value, packing.packed(value)
        return positions[id(value)][1]

    def hook(
        _module: Module, arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        masks = [options[name] for name in options if "mask" in name]
        large = (value for value in arguments if torch.is_tensor(value) and value.dim() > 3)
        if any(mask is not None for mask in itertools.chain(masks, large)):
            raise NotPackableError("the model makes its own masks")
        return _mapped(packed, arguments), _mapped(packed, options)

    return hook


def _padded_output(packing: TokenPacking | RowPacking) -> Any:
    def hook(_module: Module, _arguments: tuple[Any, ...], output: Any) -> Any:
        return _mapped(packing.padded, output)

    return hook


def _mapped(change: Any, value: Any) -> Any:
    """Applies a function to all tensors of a value."""
    match value:
        case torch.Tensor():
            return change(value)
        case tuple():
            items = cast("tuple[Any, ...]", value)
            return tuple(_mapped(change, item) for item in items)
        case dict():
            named = cast("dict[str, Any]", value)
            return {name: _mapped(change, item) for name, item in named.items()}
        case _:
            return value
