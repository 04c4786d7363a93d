"""Whisper's encoder and decoder for decoding: interfaces and an implementation with torch."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, EncoderDecoderCache


class DecoderState(Protocol):
    """Encoded windows and the tokens of each that the decoder has read."""

    def step(self, tokens: Tensor) -> Tensor:
        """Reads the next tokens of every window.

        Args:
            tokens: (windows, tokens), int64.

        Returns:
            (windows, vocabulary), float32, on the CPU: logits of the token after the last one.
        """
        ...

    def restart(self) -> None:
        """Clears the tokens. At least one must have been read."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Continues with only these windows."""
        ...


class Network(Protocol):
    """A Whisper model. It decodes one batch of windows at a time."""

    def encode(self, features: Tensor) -> DecoderState:
        """Encodes windows: (windows, mels, frames), log-mel, as long as the model accepts."""
        ...


class TorchNetwork:
    """A Whisper model of transformers (`Network`)."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def encode(self, features: Tensor) -> "TorchDecoderState":
        return TorchDecoderState(self._model, self._model.model.encoder(features).last_hidden_state)


class TorchDecoderState:
    """`DecoderState` with torch. It also returns the attention that aligns words."""

    def __init__(self, model: Any, encoded: Tensor) -> None:
        self._model = model
        self._all_encoded = self._encoded = encoded
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())

    def step(self, tokens: Tensor) -> Tensor:
        states = self._model.model.decoder(
            input_ids=tokens.to(self._encoded.device),
            encoder_hidden_states=self._encoded,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state
        return self._model.proj_out(states[:, -1]).float().cpu()

    def restart(self) -> None:
        self._cache = EncoderDecoderCache(DynamicCache(), self._cache.cross_attention_cache)

    def keep(self, rows: Sequence[int]) -> None:
        indices = torch.tensor(rows, device=self._encoded.device)
        self._cache.batch_select_indices(indices)
        self._encoded = self._encoded[indices]

    def attention(self, tokens: Tensor, heads: Sequence[tuple[int, int]]) -> Tensor:
        """Returns the attention of some decoder heads over whole transcripts.

        Args:
            tokens: (windows, tokens), int64, of all encoded windows.
            heads: Layer and head of each.

        Returns:
            (windows, heads, tokens, positions of the encoder), float.
        """
        config = self._model.config
        used = config._attn_implementation
        # Only this implementation returns the weights.
        config._attn_implementation = "eager"
        try:
            attentions = self._model.model.decoder(
                input_ids=tokens.to(self._all_encoded.device),
                encoder_hidden_states=self._all_encoded,
                use_cache=False,
                output_attentions=True,
            ).cross_attentions
        finally:
            config._attn_implementation = used
        return torch.stack([attentions[layer][:, head] for layer, head in heads], 1)
