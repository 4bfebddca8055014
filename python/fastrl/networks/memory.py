"""Memory of networks: a recurrent layer along the steps of episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fastrl.networks.kinds import MemoryKind
from fastrl.networks.perceptron import in_float32

if TYPE_CHECKING:
    from fastrl.replay.recurrent import ObsSequences

_GATES = {"gru": 3, "lstm": 4}

# Steps, the longest time that a unit remembers at first.
LONGEST_MEMORY = 128


class Unrolls:
    """Outputs of memories along sequences, whose weights are equal and do not change: the same sequences are run along
    once.

    Args:
        learns: gradients are wanted, of each graph by a single backward pass; False: no outputs have any.
    """

    def __init__(self, learns: bool) -> None:
        self._learns = learns
        self._steps: PackedSequence | None = None
        self._outputs = torch.empty(0)

    def along(self, steps: PackedSequence, run: Callable[[], Tensor]) -> Tensor:
        """The outputs of ``run`` along the steps, float [P, size]."""
        has_gradients = self._learns and torch.is_grad_enabled()
        if self._steps is not steps or (has_gradients and not self._outputs.requires_grad):
            # Outputs that are first asked for without gradients serve those who want them later.
            with torch.set_grad_enabled(self._learns):
                self._steps, self._outputs = steps, run()
        outputs = self._outputs
        if has_gradients:
            self._outputs = outputs.detach()
        return outputs


@contextmanager
def unrolled_once(learns: bool, *networks: Any) -> Iterator[None]:
    """While it lasts, networks whose memories are equal share `Unrolls`; those without a memory are left alone."""
    memories: list[Memory] = [each.memory for each in networks if getattr(each, "memory", None) is not None]
    unrolls = Unrolls(learns)
    for memory in memories:
        memory.unrolls = unrolls
    try:
        yield
    finally:
        for memory in memories:
            memory.unrolls = None


class Memory(nn.Module):
    """A GRU (Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014) or an LSTM (Hochreiter and
    Schmidhuber, "Long short-term memory", 1997), with the equations and parameters of PyTorch's.

    Weights are orthogonal; those of fewer inputs than outputs are larger, with a mean square of 1 of the norms of rows.
    Biases make a fresh unit remember for 1 to `LONGEST_MEMORY` steps, each unit for another time (Tallec and Ollivier,
    "Can recurrent neural networks warp time?", 2018, draw such times at random): gradients would not reach further back
    than a few steps otherwise.

    Args:
        kind: "gru" or "lstm".
        inputs: length of the features.
        size: number of outputs.
        generator: where the initial weights come from; None: torch's global generator.

    Attributes:
        state_size: length of a state: the outputs of the last step, then an LSTM's cell.
        unrolls: outputs that `along` uses again; None: each call runs.
    """

    unrolls: Unrolls | None = None

    def __init__(self, kind: MemoryKind, inputs: int, size: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        self.state_size = size * (2 if kind == "lstm" else 1)
        gates = _GATES[kind] * size
        self.weight_ih = nn.Parameter(torch.empty(gates, inputs))
        self.weight_hh = nn.Parameter(torch.empty(gates, size))
        self.bias_ih = nn.Parameter(torch.empty(gates))
        self.bias_hh = nn.Parameter(torch.empty(gates))
        if not self.weight_ih.is_meta:
            # With columns of norm 1 few inputs, such as those of an observation, would hardly reach the gates.
            gain = math.sqrt(gates / inputs) if inputs < size else 1.0
            nn.init.orthogonal_(self.weight_ih, gain, generator=generator)
            nn.init.orthogonal_(self.weight_hh, generator=generator)
            nn.init.zeros_(self.bias_ih)
            nn.init.zeros_(self.bias_hh)
            # A gate of sigmoid(log(k)) = k / (k + 1) keeps a value for some k steps.
            keeps = torch.linspace(0, math.log(LONGEST_MEMORY), size)
            biases = self.bias_hh.detach().view(-1, size)
            biases[1] = keeps
            if kind == "lstm":
                biases[0] = -keeps

    def actor_tensors(self) -> list[Tensor]:
        """Tensors that a compiled actor reads, in order."""
        return [self.weight_ih.t(), self.bias_ih, self.weight_hh.t(), self.bias_hh]

    def forward(self, features: Tensor, batch_sizes: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Runs along S sequences, the longest first, whose steps lie in the order of PyTorch's ``PackedSequence``; in
        float32 within `torch.autocast`, too.

        Args:
            features: float [P, inputs]: the first steps of all sequences, then their second steps, and so on.
            batch_sizes: int64 [L], sequences that have a first, a second, ... step; on the CPU.
            states: float32 [S, state_size], before the first steps.

        Returns:
            Outputs float [P, size], and the states after the last steps, float [S, state_size].
        """
        return in_float32(self._run, features, batch_sizes, states)

    def step(self, features: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """One step of S sequences; as `forward`."""
        return self(features, torch.tensor([len(states)]), states)

    def along(self, encode: Callable[[Tensor], Tensor], obs: ObsSequences) -> Tensor:
        """Outputs [B, size] at the observations that are asked for. No gradient flows through the burn-in.

        Args:
            encode: gives features of rows.
        """

        def run(steps: PackedSequence, states: Tensor) -> tuple[Tensor, Tensor]:
            outputs, after = self(encode(steps.data), steps.batch_sizes, states[steps.sorted_indices])
            return outputs, after[steps.unsorted_indices]

        def outputs() -> Tensor:
            states = obs.states
            if obs.burn_in is not None:
                _, after = run(obs.burn_in, states[obs.burnt])
                # Under no_grad() autocast would keep converted weights without gradients for the steps.
                states = states.index_copy(0, obs.burnt, after.detach())
            return run(obs.steps, states)[0]

        found = outputs() if self.unrolls is None else self.unrolls.along(obs.steps, outputs)
        return found[obs.places]

    def _run(self, features: Tensor, batch_sizes: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        parameters: list[Tensor] = [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]
        # In training mode alone cuDNN keeps what gradients need. Without dropout the mode changes nothing else.
        options: Any = (True, 1, 0.0, torch.is_grad_enabled(), False)
        if self.kind == "lstm":
            before = tuple(part.unsqueeze(0).contiguous() for part in states.split(self.size, 1))
            outputs, last, cells = torch.lstm(features, batch_sizes, before, parameters, *options)
            return outputs, torch.cat([last[0], cells[0]], 1)
        if features.is_cuda:
            outputs, last = torch.gru(features, batch_sizes, states.unsqueeze(0), parameters, *options)
            return outputs, last[0]
        # Twice as fast as torch.gru, whose operations for a step are many and small.
        gates = nn.functional.linear(features, self.weight_ih, self.bias_ih)
        found: Tensor = _Gru.apply(gates, states, self.weight_hh, self.bias_hh, batch_sizes.tolist())  # type: ignore[no-untyped-call]
        return found, found[last_steps(batch_sizes)]


def last_steps(batch_sizes: Tensor) -> Tensor:
    """The place of each sequence's last step among packed steps, int64 [S]."""
    sequences = torch.arange(int(batch_sizes[0]))
    lengths = (batch_sizes.unsqueeze(1) > sequences).sum(0)
    return (batch_sizes.cumsum(0) - batch_sizes)[lengths - 1] + sequences


class _Gru(torch.autograd.Function):
    """The recurrent part of a GRU, with its gradients spelled out.

    With r, z = sigmoid(.), n = tanh(x_n + r * a) where a = W_n h + b_n, a step makes ::

        h' = n + z (h - n)
        dh'/dx_n = (1 - z) (1 - n^2),   dh'/dx_z = (h - n) z (1 - z),   dh'/dx_r = dh'/dx_n * a r (1 - r)
    """

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, states: Tensor, weight: Tensor, bias: Tensor, batch_sizes: list[int]
    ) -> Tensor:
        size = states.shape[1]
        # In the order of the steps: what the state adds to the gates, reset and update gates, candidates, outputs.
        of_states = torch.empty_like(gates)
        reset_update = gates.new_empty(len(gates), 2 * size)
        new, outputs = (gates.new_empty(len(gates), size) for _ in range(2))
        reset, update = reset_update.split(size, 1)
        recurrent = of_states[:, 2 * size :]
        state, before, transposed = states, list[Tensor](), weight.t()
        # Views of each step by a few calls: those of one step at a time take as long as the arithmetic.
        views = [gates[:, : 2 * size], gates[:, 2 * size :], of_states, of_states[:, : 2 * size], recurrent]
        views += [reset_update, reset, update, new, outputs]
        for x_gates, x_new, h_all, h_gates, h_new, both, r, z, candidate, output in zip(
            *(view.split(batch_sizes) for view in views), strict=True
        ):
            before.append(state[: len(output)])
            torch.addmm(bias, before[-1], transposed, out=h_all)
            torch.add(x_gates, h_gates, out=both).sigmoid_()
            torch.addcmul(x_new, r, h_new, out=candidate).tanh_()
            state = torch.lerp(candidate, before[-1], z, out=output)
        ctx.save_for_backward(reset_update, new, recurrent, torch.cat(before), weight)
        ctx.batch_sizes = batch_sizes
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        [gradient] = gradients
        reset_update, new, recurrent, before, weight = ctx.saved_tensors
        size = weight.shape[1]
        reset, update = reset_update.split(size, 1)
        # Factors of the gradient of each step's outputs.
        to_new = (1 - update) * (1 - new.square())
        to_update = (before - new) * update * (1 - update)
        to_reset = recurrent * reset * (1 - reset)
        of_inputs, of_state = (gradient.new_empty(len(gradient), 3 * size) for _ in range(2))
        later: Tensor | None = None
        views = [gradient, to_new, to_update, to_reset, reset, update, of_inputs[:, 2 * size :], of_state]
        views += of_state.split(size, 1)
        steps = list(zip(*(view.split(ctx.batch_sizes) for view in views), strict=True))
        for total, by_new, by_update, by_reset, r, z, of_new, mine, of_r, of_z, of_n in reversed(steps):
            if later is not None:
                ended = total[len(later) :]
                total = total[: len(later)] + later
                if len(ended):
                    total = torch.cat([total, ended])
            torch.mul(total, by_new, out=of_new)
            torch.mul(of_new, by_reset, out=of_r)
            torch.mul(total, by_update, out=of_z)
            torch.mul(of_new, r, out=of_n)
            later = torch.addcmul(mine @ weight, total, z)
        of_inputs[:, : 2 * size] = of_state[:, : 2 * size]
        return of_inputs, None, of_state.t() @ before, of_state.sum(0), None
