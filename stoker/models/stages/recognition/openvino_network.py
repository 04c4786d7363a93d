"""Whisper with OpenVINO: the encoder and a step of the decoder as separate models.

The encoder returns the keys and values of cross-attention, which are inputs of the decoder. The
keys and values of self-attention are the decoder's state.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy
import torch
from torch import Tensor
from transformers.cache_utils import EncoderDecoderCache

from stoker.models.stages.recognition.network import Network, TorchNetwork
from stoker.models.stages.stateful import cache_of, make_stateful, parts_of

if TYPE_CHECKING:
    from openvino import CompiledModel

    from stoker.models.stages.recognition.decoder import DecodingOptions

_ENCODER, _DECODER = "encoder.xml", "decoder.xml"
_BATCH, _LENGTH, _PAST = 2, 3, 5
"""Sizes for tracing the step. All of them stay dynamic in the result."""


class WhisperSteps:
    """Conversion of a Whisper model: `stoker.models.stages.base.Steps`."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def takes(self, call: Hashable) -> bool:
        """Returns True except for word times, which need the attention weights: only torch returns
        these.
        """
        return not cast("DecodingOptions", call).words

    @torch.no_grad()
    def export(self, model: Any, folder: Path) -> None:
        import openvino

        library: Any = openvino
        config = model.config
        layers, heads = config.decoder_layers, config.decoder_attention_heads
        size = config.d_model // heads
        positions = config.max_source_positions
        window = torch.zeros(1, config.num_mel_bins, 2 * positions)
        encoder = library.convert_model(_Encoder(model), example_input=(window,))
        # Single windows are as fast as several at once, and static shapes are faster.
        encoder.reshape(list(window.shape))
        library.save_model(encoder, folder / _ENCODER, compress_to_fp16=False)
        tokens = torch.zeros(_BATCH, _LENGTH, dtype=torch.int64)
        memory = [torch.zeros(_BATCH, heads, positions, size) for _ in range(2 * layers)]
        past = [torch.zeros(_BATCH, heads, _PAST, size) for _ in range(2 * layers)]
        decoder = library.convert_model(_DecoderStep(model), example_input=(tokens, memory, past))
        names = ["tokens", *(_memory(at) for at in range(2 * layers))]
        make_stateful(decoder, names, layers, heads, size)
        library.save_model(decoder, folder / _DECODER, compress_to_fp16=False)

    def inputs(self, file: str, batch: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """Returns the inputs of the encoder and none for the decoder.

        A step of the decoder reads its weights for a few tokens, so its time depends on the width
        of the weights.
        """
        return [batch["input_features"]] if file == _ENCODER else []

    @torch.inference_mode()
    def retold(
        self, model: Any, batch: Mapping[str, Tensor], found: Mapping[str, Any]
    ) -> Mapping[str, Tensor]:
        config = self._config
        network: Network = TorchNetwork(model) if isinstance(model, torch.nn.Module) else model
        state = network.encode(batch["input_features"])
        begin = torch.full((len(found["tokens"]), 1), config.decoder_start_token_id)
        tokens = torch.cat([begin, found["tokens"]], 1)[:, : config.max_target_positions]
        steps = [state.step(column[:, None].contiguous()) for column in tokens.unbind(1)]
        return {"logits": torch.stack(steps, 1)}

    def opened(self, compiled: "Callable[[str], CompiledModel]") -> "OpenVinoNetwork":
        return OpenVinoNetwork(compiled(_ENCODER), compiled(_DECODER))


def _memory(at: int) -> str:
    return f"memory.{at}"


class _Encoder(torch.nn.Module):
    """Returns the keys and values that the decoder's layers attend to, in the order of the
    layers.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        encoded = self.model.model.encoder(features).last_hidden_state
        parts: list[Tensor] = []
        for layer in self.model.model.decoder.layers:
            attention = layer.encoder_attn
            shape = (encoded.shape[0], -1, attention.num_heads, attention.head_dim)
            for project in (attention.k_proj, attention.v_proj):
                parts.append(project(encoded).view(shape).transpose(1, 2))
        return tuple(parts)


class _DecoderStep(torch.nn.Module):
    """Step of the decoder that reads tokens, with all keys and values as plain inputs and
    outputs.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, memory: Sequence[Tensor], past: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        cache = cache_of(past)
        rows, before = tokens.shape[0], past[0].shape[2]
        places = torch.arange(before + tokens.shape[1])
        read = torch.arange(before, before + tokens.shape[1])
        # transformers uses a mask of four dimensions unchanged.
        mask = (places[None, :] <= read[:, None])[None, None].expand(rows, 1, -1, -1)
        states = self.model.model.decoder(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=read[None].expand(rows, -1),
            # The cached keys and values are used instead of this tensor. Without it,
            # cross-attention would be skipped.
            encoder_hidden_states=memory[0],
            past_key_values=EncoderDecoderCache(cache, cache_of(memory)),
            use_cache=True,
        ).last_hidden_state
        return (self.model.proj_out(states[:, -1]), *parts_of(cache))


class OpenVinoNetwork:
    """A converted Whisper model (`Network`)."""

    def __init__(self, encoder: "CompiledModel", decoder: "CompiledModel") -> None:
        self._encoder = encoder.create_infer_request()
        self._decoder = decoder

    def encode(self, features: Tensor) -> "OpenVinoDecoderState":
        encoded = [self._encoded(features[row : row + 1]) for row in range(len(features))]
        memory = [numpy.concatenate(parts) for parts in zip(*encoded, strict=True)]
        # A separate request, so that its memory is freed with the state.
        return OpenVinoDecoderState(self._decoder.create_infer_request(), memory, len(features))

    def _encoded(self, window: Tensor) -> list[Any]:
        outputs = self._encoder.infer([window.numpy()], share_inputs=True)
        return [outputs[place] for place in range(len(outputs))]


class OpenVinoDecoderState:
    """`DecoderState` with OpenVINO. The infer request's state holds the keys and values."""

    def __init__(self, decoder: Any, memory: list[Any], rows: int) -> None:
        self._decoder = decoder
        self._place(memory)
        self._rows: Sequence[int] = range(rows)

    def step(self, tokens: Tensor) -> Tensor:
        self._decoder.set_tensor("tokens", _shared(tokens.contiguous().numpy()))
        self._decoder.set_tensor("beam_idx", _shared(numpy.array(self._rows, numpy.int32)))
        self._decoder.infer()
        self._rows = range(len(tokens))
        # Copied, because the request reuses its memory.
        return torch.as_tensor(self._decoder.get_output_tensor(0).data.copy())

    def restart(self) -> None:
        self._decoder.reset_state()

    def keep(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]
        self._place([part[rows] for part in self._kept])

    def _place(self, memory: list[Any]) -> None:
        self._kept = memory
        for at, part in enumerate(memory):
            self._decoder.set_tensor(_memory(at), _shared(part))


def _shared(array: Any) -> Any:
    """Returns a tensor that shares the array's memory and keeps the array alive."""
    import openvino

    return openvino.Tensor(array, shared_memory=True)
