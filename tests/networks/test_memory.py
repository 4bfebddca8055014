"""A network's memory: torch's GRU and LSTM, with their gradients, along sequences of any lengths."""

import numpy as np
import pytest
import torch
from torch import nn

from fastrl.networks.memory import Memory, last_steps

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("lengths", [[1], [3, 3], [7, 5, 5, 2, 1, 1]])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_outputs_states_and_gradients_are_those_of_torch(kind, lengths, device):
    torch.manual_seed(1)
    # Networks learn in this mode, too: it concerns dropout alone.
    memory = Memory(kind, 4, 5, None).eval()
    cell = (nn.GRUCell if kind == "gru" else nn.LSTMCell)(4, 5)
    with torch.no_grad():
        for mine, theirs in zip(memory.parameters(), cell.parameters(), strict=True):
            mine.add_(torch.randn(mine.shape) * 0.3)
            theirs.copy_(mine)
    batch_sizes = torch.tensor([sum(length > t for length in lengths) for t in range(lengths[0])])
    inputs = torch.randn(sum(lengths), 4, requires_grad=True)
    states = torch.randn(len(lengths), memory.state_size)
    weights = torch.randn(sum(lengths), 5)

    memory.to(device)
    outputs, after = (each.cpu() for each in memory(inputs.to(device), batch_sizes, states.to(device)))
    (outputs * weights).sum().backward()
    found = [inputs.grad, *(each.grad.cpu() for each in memory.parameters())]
    # cuDNN may round factors to 10 bits (TF32).
    near = {"rtol": 1e-5, "atol": 1e-5} if device == "cpu" else {"rtol": 1e-2, "atol": 1e-2}

    inputs.grad = None
    loss, expected_after = torch.zeros(()), torch.zeros_like(states)
    starts = (batch_sizes.cumsum(0) - batch_sizes).tolist()
    for sequence, length in enumerate(lengths):
        parts = states[sequence : sequence + 1].split(5, 1)
        state = parts[0] if kind == "gru" else parts
        for t in range(length):
            place = starts[t] + sequence
            state = cell(inputs[place : place + 1], state)
            output = state if kind == "gru" else state[0]
            torch.testing.assert_close(outputs[place], output[0], **near)
            loss = loss + (output * weights[place]).sum()
        expected_after[sequence] = state[0] if kind == "gru" else torch.cat(state, 1)[0]
    loss.backward()
    torch.testing.assert_close(after, expected_after, **near)
    for mine, theirs in zip(found, [inputs.grad, *(each.grad for each in cell.parameters())], strict=True):
        torch.testing.assert_close(mine, theirs, **near)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_it_stays_in_float32(kind):
    memory, batch_sizes = Memory(kind, 4, 5, torch.Generator().manual_seed(0)), torch.tensor([2, 1])
    features, states = torch.randn(3, 4), torch.randn(2, memory.state_size)
    expected = memory(features.bfloat16().float(), batch_sizes, states)
    with torch.autocast("cpu", torch.bfloat16):
        found = memory(features.bfloat16(), batch_sizes, states)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_initial_weights_are_orthogonal_and_follow_from_the_generator():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    memories = [Memory("gru", 8, 8, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert (torch.get_rng_state() == state).all()
    for name, weights in memories[0].named_parameters():
        assert torch.equal(weights, memories[1].get_parameter(name))
    weight = memories[0].weight_hh
    torch.testing.assert_close(weight.T @ weight, torch.eye(8), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("kind", "inputs", "norm"), [("gru", 2, 1), ("lstm", 7, 1), ("gru", 8, (8 / 24) ** 0.5)]
)
def test_few_inputs_reach_the_gates_as_strongly_as_many(kind, inputs, norm):
    weight = Memory(kind, inputs, 8, torch.Generator().manual_seed(3)).weight_ih
    assert weight.square().sum(1).mean().sqrt().item() == pytest.approx(norm)


def test_places_of_last_steps():
    assert last_steps(torch.tensor([4, 3, 1])).tolist() == [7, 5, 6, 3]
    assert np.array_equal(last_steps(torch.tensor([2])), [0, 1])
