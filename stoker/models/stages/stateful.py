"""Decoders for OpenVINO: a traced step with keys and values that become the model's state."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer


class NotExportableError(Exception):
    """Raised if a model cannot be exported and stays with torch. The message gives the reason."""


def cache_of(parts: Sequence[torch.Tensor]) -> Any:
    """Returns a cache with these keys and values, in the order of the layers.

    Each tensor is (rows, heads, tokens, size).
    """
    cache: Any = DynamicCache()
    for keys, values in zip(parts[::2], parts[1::2], strict=True):
        layer: Any = DynamicLayer()
        layer.keys, layer.values = keys, values
        layer.dtype, layer.device = keys.dtype, keys.device
        layer.is_initialized = True
        cache.layers.append(layer)
    return cache


def parts_of(cache: Any) -> list[torch.Tensor]:
    """Returns the keys and values of a cache, in the format of `cache_of`."""
    return [part for layer in cache.layers for part in (layer.keys, layer.values)]


def make_stateful(ir: Any, inputs: Sequence[str], layers: int, heads: int, size: int) -> None:
    """Turns the keys and values from inputs and outputs into the model's state.

    Args:
        ir: A traced step. Its outputs are logits and all keys and values.
        inputs: Names of the inputs before the past keys and values. The first is (rows, tokens).

    Adds an input `beam_idx`, int32 (rows,), that selects the rows of the state to continue with.

    Raises:
        NotExportableError: The traced step has other inputs or outputs.
    """
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation

    opset: Any = openvino.opset13
    parts = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    inputs = [*inputs, *(f"past.{entry}" for entry in parts)]
    outputs = ["logits", *(f"present.{entry}" for entry in parts)]
    if len(ir.inputs) != len(inputs) or len(ir.outputs) != len(outputs):
        raise NotExportableError("The converted model has unexpected inputs or outputs.")
    for port, name in zip(ir.inputs, inputs, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
    for port, name in zip(ir.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    # `beam_idx` removes rows and moves beams. PagedAttention's transformation looks for it.
    beams = opset.parameter([-1], openvino.Type.i32, name="beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    ir.add_parameters([beams])
    for entry in parts:
        place = ir.input(f"past.{entry}").get_node()
        place.set_partial_shape(openvino.PartialShape([-1, heads, -1, size]))
        users = place.output(0).get_target_inputs()
        reordered = opset.gather(place, beams, opset.constant(0))
        for user in users:
            user.replace_source_output(reordered.output(0))
    ir.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(ir, {f"past.{entry}": f"present.{entry}" for entry in parts})
    # The state begins empty, in the batch's size.
    batch = opset.gather(
        opset.shape_of(ir.input(inputs[0]), output_type="i64"),
        opset.constant([0]),
        opset.constant(0),
    )
    for node in ir.get_ops():
        if node.get_type_name() == "ReadValue":
            dimensions = [batch, *(opset.constant([entry]) for entry in (heads, 0, size))]
            shape = opset.concat(dimensions, axis=0)
            node.set_arguments([opset.broadcast(opset.constant(0.0, dtype="float32"), shape)])
    ir.validate_nodes_and_infer_types()
