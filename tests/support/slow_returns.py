"""Returns and advantages by their definitions, in float64: slow and simple."""

import numpy as np


def slow_gae(rewards, values, terminations, truncations, final_values, last_values, gamma, gae_lambda):
    """One environment and one step at a time, in float64."""
    num_steps, num_envs = rewards.shape
    advantages = np.zeros((num_steps, num_envs))
    for i in range(num_envs):
        advantage_after = 0.0
        value_after = float(last_values[i])
        for t in reversed(range(num_steps)):
            if terminations[t, i]:
                value_after, advantage_after = 0.0, 0.0
            elif truncations[t, i]:
                value_after, advantage_after = float(final_values[t, i]), 0.0
            delta = float(rewards[t, i]) + gamma * value_after - float(values[t, i])
            advantage_after = delta + gamma * gae_lambda * advantage_after
            advantages[t, i] = advantage_after
            value_after = float(values[t, i])
    return advantages, advantages + values


def after(arrays, t, i, next_value):
    """The value after step t of environment i."""
    if arrays["terminations"][t, i]:
        return 0.0
    return float(arrays["final_values"][t, i]) if arrays["truncations"][t, i] else next_value


def ends(arrays, t, i):
    return arrays["terminations"][t, i] or arrays["truncations"][t, i]


def next_value(arrays, t, i):
    last = t == len(arrays["rewards"]) - 1
    return float(arrays["last_values"][i] if last else arrays["values"][t + 1, i])


def slow_discounted_returns(arrays, gamma):
    """Forward from each step to the end of its episode or of the rollout, in float64."""

    def one(t, i):
        total, discount = 0.0, 1.0
        for k in range(t, len(arrays["rewards"])):
            total += discount * float(arrays["rewards"][k, i])
            discount *= gamma
            if ends(arrays, k, i):
                return total + discount * after(arrays, k, i, None)
        return total + discount * float(arrays["last_values"][i])

    return each(arrays, one)


def slow_n_step_returns(arrays, gamma, n_step):
    def one(t, i):
        total, discount = 0.0, 1.0
        steps = range(t, min(t + n_step, len(arrays["rewards"])))
        for k in steps:
            total += discount * float(arrays["rewards"][k, i])
            discount *= gamma
            if ends(arrays, k, i):
                return total + discount * after(arrays, k, i, None)
        return total + discount * next_value(arrays, steps[-1], i)

    return each(arrays, one)


def slow_lambda_returns(arrays, gamma, return_lambda):
    """The definition: n-step returns of all lengths, each weighted by lambda^(n-1) (1 - lambda), the longest
    by the remaining weight (Sutton and Barto, equation 12.3)."""

    def one(t, i):
        longest = 1
        while t + longest < len(arrays["rewards"]) and not ends(arrays, t + longest - 1, i):
            longest += 1
        total = 0.0
        for n in range(1, longest + 1):
            weight = return_lambda ** (n - 1) * (1 if n == longest else 1 - return_lambda)
            total += weight * lengths[n - 1][t, i]
        return total

    lengths = [slow_n_step_returns(arrays, gamma, n) for n in range(1, len(arrays["rewards"]) + 1)]
    return each(arrays, one)


def slow_vtrace(arrays, gamma, rho_clip, c_clip, trace_lambda):
    """Equation 1 of the paper as a sum over the steps ahead, then the gradient's advantage from the targets."""
    ratios = np.exp(arrays["log_ratios"].astype(np.float64))

    def delta(t, i):
        value = float(arrays["values"][t, i])
        follows = after(arrays, t, i, next_value(arrays, t, i))
        return min(rho_clip, ratios[t, i]) * (float(arrays["rewards"][t, i]) + gamma * follows - value)

    def target(t, i):
        total, weight = float(arrays["values"][t, i]), 1.0
        for k in range(t, len(ratios)):
            total += weight * delta(k, i)
            if ends(arrays, k, i):
                break
            weight *= gamma * trace_lambda * min(c_clip, ratios[k, i])
        return total

    def advantage(t, i):
        last = t == len(ratios) - 1
        follows = after(arrays, t, i, next_value(arrays, t, i) if last else targets[t + 1, i])
        error = float(arrays["rewards"][t, i]) + gamma * follows - float(arrays["values"][t, i])
        return min(rho_clip, ratios[t, i]) * error

    targets = each(arrays, target)
    return each(arrays, advantage), targets


def each(arrays, one):
    num_steps, num_envs = arrays["rewards"].shape
    return np.array([[one(t, i) for i in range(num_envs)] for t in range(num_steps)])
