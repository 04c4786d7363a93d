"""Attention with soft caps or sinks, which torch's scaled dot product attention does not support.

A cap limits a score smoothly: `cap · tanh(score / cap)`. A sink is an additional score of each
head. It has no value, so it only takes weight from the keys.
"""

import torch

from stoker.models.llm.engines.paged.attention import AttentionInputs

MOST_SCORES = 1 << 26
"""Maximum number of scores that are computed together, except for one query of each sequence."""


def attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    new: AttentionInputs,
) -> torch.Tensor:
    """Returns the output: (sequences, key heads, repeats, queries, value size).

    Args:
        query: (sequences, key heads, repeats, queries, size).
        keys: (sequences, key heads, width, size).
        mask: (sequences or 1, 1, queries, width). Numbers are added to the scores. Booleans are
            True for keys that are attended to. None: all are.
        new: has the scale, the cap and the sinks.
    """
    sequences, key_heads, repeats, *_ = query.shape
    rows = max(1, MOST_SCORES // (sequences * key_heads * repeats * keys.shape[2]))
    masks = None if mask is None else torch.split(mask[:, :, None], rows, dim=3)
    parts = [
        _attended(part, keys, values, masks[number] if masks else None, new)
        for number, part in enumerate(torch.split(query, rows, dim=3))
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=3)


def _attended(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    new: AttentionInputs,
) -> torch.Tensor:
    *shape, size = query.shape
    # Heads that share keys become additional queries, so that no key is copied.
    scores = query.flatten(2, 3) @ keys.transpose(-1, -2)
    scores = scores.float().mul_(size**-0.5 if new.scale is None else new.scale).view(*shape, -1)
    if new.cap is not None:
        scores.div_(new.cap).tanh_().mul_(new.cap)
    if mask is not None and mask.dtype == torch.bool:
        scores.masked_fill_(~mask, -torch.inf)
    elif mask is not None:
        scores += mask
    weights = torch.softmax(scores, dim=-1)
    if new.sinks is not None:
        sinks = new.sinks.float().view(*shape[1:3], 1, 1)
        weights *= share_of_keys(scores.logsumexp(-1, keepdim=True), sinks)
    output = weights.flatten(2, 3).to(values.dtype) @ values
    return output.view(*shape, -1)


def share_of_keys(logsumexp: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Returns the share of the weights that sinks leave to the keys.

    Args:
        logsumexp: logarithm of the summed exponentials of the keys' scores.
    """
    return torch.sigmoid(logsumexp - sinks)
