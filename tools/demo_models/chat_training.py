"""Training loop of `tiny-chat`: Muon for its matrices, AdamW for the other parameters."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from tools.demo_models.common import Batch

_WARM_UP = 100
_STEADY = 0.3
"""Share of the steps before the learning rate starts to fall."""

logger = logging.getLogger(__name__)


class Muon(torch.optim.Optimizer):
    """Optimizer with momentum and orthogonal steps (Jordan and others 2024), scaled to the size of
    AdamW's steps.

    Copying is learnt in half of the steps that AdamW needs. torch's optimizer of this name computes
    in bfloat16, which is slow on processors without it, and handles one matrix at a time.
    """

    def __init__(self, matrices: Iterable[Tensor], rate: float) -> None:
        super().__init__(matrices, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Updates every matrix. Matrices of the same shape are computed together."""
        for group in self.param_groups:
            matrices: list[Tensor] = group["params"]
            alike: dict[tuple[int, ...], list[Tensor]] = {}
            for matrix in matrices:
                alike.setdefault(tuple(sorted(matrix.shape)), []).append(matrix)
            for (_, longest), same in alike.items():
                # The factor scales the step to the size of AdamW's (Liu and others 2025).
                size = 0.2 * math.sqrt(longest) * group["lr"]
                for matrix, direction in zip(same, _orthogonal(self._momenta(same)), strict=True):
                    matrix.sub_(_lying(matrix, direction), alpha=size)

    def _momenta(self, matrices: Sequence[Tensor]) -> Tensor:
        """Returns Nesterov's momentum of each matrix, with the shorter side first: `[matrices,
        shorter side, longer side]`.
        """
        momenta: list[Tensor] = []
        for matrix in matrices:
            gradient = matrix.grad
            if gradient is None:
                raise ValueError("A matrix that the loss does not depend on cannot be trained.")
            state = self.state[matrix]
            momentum = state.setdefault("momentum", torch.zeros_like(matrix))
            momentum.lerp_(gradient, 0.05)
            momenta.append(_lying(matrix, gradient.lerp(momentum, 0.95)))
        return torch.stack(momenta)


def _lying(shape: Tensor, values: Tensor) -> Tensor:
    return values.T if shape.shape[0] > shape.shape[1] else values


def _orthogonal(matrices: Tensor) -> Tensor:
    """Returns each matrix with its singular values near 1, by four Newton-Schulz steps."""
    normalized = matrices / (matrices.square().sum((1, 2), keepdim=True).sqrt() + 1e-7)
    for _ in range(4):
        square = normalized @ normalized.transpose(1, 2)
        normalized = 3.4445 * normalized + (2.0315 * square @ square - 4.7750 * square) @ normalized
    return normalized


def fit(
    model: Any,
    batches: Iterator[Batch],
    loss_of: Callable[[Batch], Tensor],
    *,
    steps: int,
    peak_rate: float,
) -> None:
    """Trains the model. The learning rate stays at its peak for a while and falls to zero by the
    end.
    """
    inner: list[Tensor] = [item for item in model.model.layers.parameters() if item.ndim == 2]
    known = {id(item) for item in inner}
    outer: list[Tensor] = [item for item in model.parameters() if id(item) not in known]
    optimizers: tuple[Any, ...] = (
        Muon(inner, peak_rate),
        torch.optim.AdamW(outer, peak_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    )
    schedules = [LambdaLR(item, lambda step: _share_of_peak(step, steps)) for item in optimizers]
    model.train()
    started, losses = time.process_time(), list[float]()
    for step in range(1, steps + 1):
        loss = loss_of(next(batches))
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedules):
            each.step()
        model.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step % (steps // 24) == 0:
            spent = time.process_time() - started
            mean = sum(losses) / len(losses)
            logger.info("step %d of %d, loss %.4f, %.0f s of CPU", step, steps, mean, spent)
            losses.clear()
    model.eval()


def _share_of_peak(step: int, steps: int) -> float:
    return min((step + 1) / _WARM_UP, 1.0, (steps - step) / ((1 - _STEADY) * steps))
