r"""How probable are states along a chain? Forward, backward and the most probable path, compiled.

Densities come as logarithms, (T, K), several sequences end to end. Each step is divided by its own total, so nothing
underflows however long the series: :math:`\log p = \sum_t \log c_t`.
"""

from __future__ import annotations

import math

import numpy as np

from robustly._runtime.numba_loops import compiled


@compiled()
def forward(density, start, transition, ends, filtered):
    """Filtered probabilities of the states (T, K), in place; returns the log likelihood."""
    steps, size = density.shape
    total = 0.0
    first = True
    sequence = 0
    ahead = np.empty(size)
    for t in range(steps):
        top = -math.inf
        for k in range(size):
            top = max(top, density[t, k])
        if not top > -math.inf:
            return -math.inf
        if first:
            for k in range(size):
                ahead[k] = start[k]
        else:
            for k in range(size):
                ahead[k] = 0.0
            for j in range(size):
                held = filtered[t - 1, j]
                for k in range(size):
                    ahead[k] += held * transition[j, k]
        norm = 0.0
        for k in range(size):
            value = ahead[k] * math.exp(density[t, k] - top)
            filtered[t, k] = value
            norm += value
        if not norm > 0.0:
            return -math.inf
        inverse = 1.0 / norm
        for k in range(size):
            filtered[t, k] *= inverse
        total += math.log(norm) + top
        first = t + 1 == ends[sequence]
        if first:
            sequence += 1
    return total


@compiled()
def backward(transition, ends, filtered, moves):
    """From filtered to smoothed probabilities, in place; `moves` (K, K) gets the expected transitions added.

    With the predicted probabilities :math:`\\hat a_{t+1} = a_t P`, the smoothed are
    :math:`g_t(j) = a_t(j) \\sum_k P_{jk}\\, g_{t+1}(k)/\\hat a_{t+1}(k)`: densities are not needed a second time.
    """
    steps, size = filtered.shape
    ahead = np.empty(size)
    sequence = len(ends) - 1
    for t in range(steps - 2, -1, -1):
        if sequence > 0 and t + 1 == ends[sequence - 1]:
            sequence -= 1
            continue
        for k in range(size):
            ahead[k] = 0.0
        for j in range(size):
            held = filtered[t, j]
            for k in range(size):
                ahead[k] += held * transition[j, k]
        for k in range(size):
            ahead[k] = filtered[t + 1, k] / ahead[k] if ahead[k] > 0.0 else 0.0
        for j in range(size):
            held = filtered[t, j]
            total = 0.0
            for k in range(size):
                value = held * transition[j, k] * ahead[k]
                moves[j, k] += value
                total += value
            filtered[t, j] = total


@compiled()
def best_path(density, log_start, log_transition, ends, path):
    """The most probable states (Viterbi 1967), in place; returns their joint log probability with the values."""
    steps, size = density.shape
    came = np.empty((steps, size), dtype=np.int32)
    value, ahead = np.empty(size), np.empty(size)
    total = 0.0
    begin = 0
    for sequence in range(len(ends)):
        end = ends[sequence]
        for k in range(size):
            value[k] = log_start[k] + density[begin, k]
        for t in range(begin + 1, end):
            for k in range(size):
                best, which = -math.inf, 0
                for j in range(size):
                    one = value[j] + log_transition[j, k]
                    if one > best:
                        best, which = one, j
                ahead[k] = best + density[t, k]
                came[t, k] = which
            value[:] = ahead
        last = np.argmax(value)
        total += value[last]
        path[end - 1] = last
        for t in range(end - 1, begin, -1):
            path[t - 1] = came[t, path[t]]
        begin = end
    return total
