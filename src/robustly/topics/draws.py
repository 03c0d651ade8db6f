r"""Which topics do the words of a document come from? Drawn, not expected.

Expected counts give every word to all topics that could have had it, so a document seems to use a little of each, and
what the topics learn from it is spread over too many of them. The more topics there are, the more that blurs them: with
30 simulated topics whose α sums to 1.5, expected counts put that sum at 3.5 and draws at 1.3. Here each token has one
topic at a time, drawn given those of all the others,

.. math:: p(z = k) \propto (\alpha_k + n_{dk}) \frac{\eta_{kw} + n_{dkw}}{H_k + n_{dk}},

with :math:`\eta_{kw}` from the other documents; for plain LDA, :math:`(\alpha_k + n_{dk})` times the topic's probability
of the word with this document's other tokens counted in. Topics are held while a pass is made, so threads do not meet,
and a document's random numbers follow from the pass and its place in the corpus alone.
"""

from __future__ import annotations

import math

import numpy as np

from robustly.topics.special import LEAST_ETA, compiled, log_rising, psi_gap

# A word's tokens in one document are drawn one by one up to this many; more move in this many bundles.
BUNDLES = 256


@compiled()
def _mix(state):
    """One step of the splitmix64 generator's output function."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _choose(weights, whole, uniform):
    """The topic that a uniform number falls on."""
    left = uniform * whole
    last = weights.size - 1
    for k in range(last):
        left -= weights[k]
        if left < 0:
            return k
    # Rounding may carry past the end; the last topic with any weight is as near as it gets.
    while last > 0 and weights[last] <= 0:
        last -= 1
    return last


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _weigh(lead, row, unit, here, repeated, weights):
    """The chance of each topic for one token, not normalised; returns the sum."""
    whole = weights.dtype.type(0)
    if repeated:
        for k in range(weights.size):
            weights[k] = lead[k] * (row[k] + unit[k] * here[k])
            whole += weights[k]
    else:
        for k in range(weights.size):
            weights[k] = lead[k] * row[k]
            whole += weights[k]
    return whole


@compiled()
def _weigh_bundle(size, alpha, total, bursty, n, row, unit, here, weights):
    """The same for `size` tokens (perhaps not a whole number) that move together."""
    top = -np.inf
    for k in range(weights.size):
        value = log_rising(alpha[k] + n[k], size)
        if bursty:
            value += log_rising(float(row[k] + here[k]), size) - log_rising(total[k] + n[k], size)
        else:
            value += size * math.log(row[k] + unit[k] * here[k])
        weights[k] = value
        top = max(top, weights[k])
    whole = weights.dtype.type(0)
    for k in range(weights.size):
        weights[k] = math.exp(weights[k] - top)
        whole += weights[k]
    return whole


@compiled()
def drawn(
    first,
    last,
    offset,
    starts,
    words,
    counts,
    eta,
    alpha,
    total,
    bursty,
    share,
    floor,
    state,
    fresh,
    seed,
    slots,
    places,
    given,
    out,
    alpha_tables,
    total_terms,
):
    r"""Draw the topics of all tokens of documents ``first:last`` once; arguments as in `kernels.collapsed`, and

    Parameters
    ----------
    fresh : nothing was drawn yet; the first draws are independent, from the expected counts in `state`
    seed : of this pass, uint64
    slots : (pairs + 1,) where each pair's tokens (or bundles) begin in `places` and `given`
    places : topic of each token, read unless `fresh`, written
    given : the statistic that the last pass took from the document, at the first token of each word and topic; read,
        to be left out of the topics, and written
    out : (pairs of the block, K) Minka's statistic given the draws, for plain LDA the counts
    """
    size = eta.shape[1]
    n = np.zeros(size)
    lead = np.empty(size, eta.dtype)
    row = np.empty(size, eta.dtype)
    here = np.zeros(size, eta.dtype)
    weights = np.empty(size, eta.dtype)
    unit = np.ones(size, eta.dtype) if bursty else share
    least = eta.dtype.type(LEAST_ETA)
    for d in range(first, last):
        random = _mix(seed + np.uint64(d) * np.uint64(0xD1342543DE82EF95))
        n[:] = 0
        if not fresh:
            for j in range(starts[d], starts[d + 1]):
                bundle = counts[j] / (slots[j + 1] - slots[j])
                for t in range(slots[j], slots[j + 1]):
                    n[places[t]] += bundle
        for k in range(size):
            tokens = state[d, k] if fresh else n[k]
            lead[k] = (alpha[k] + tokens) / (total[k] + tokens) if bursty else alpha[k] + tokens
        for j in range(starts[d], starts[d + 1]):
            word = words[j]
            begin, end = slots[j], slots[j + 1]
            bundle = counts[j] / (end - begin)
            for k in range(size):
                row[k] = eta[word, k]
            if not fresh:
                for t in range(begin, end):
                    k = places[t]
                    here[k] += bundle
                    if given[t] > 0:
                        row[k] = max(row[k] - share[k] * given[t], share[k] * floor[word], least)
            for t in range(begin, end):
                if not fresh:
                    k = places[t]
                    here[k] = max(here[k] - bundle, eta.dtype.type(0))
                    n[k] = max(n[k] - bundle, 0.0)
                    lead[k] = (alpha[k] + n[k]) / (total[k] + n[k]) if bursty else alpha[k] + n[k]
                if bundle == 1.0 or fresh:
                    whole = _weigh(lead, row, unit, here, end - begin > 1 and not fresh, weights)
                else:
                    whole = _weigh_bundle(bundle, alpha, total, bursty, n, row, unit, here, weights)
                random += np.uint64(0x9E3779B97F4A7C15)
                k = _choose(weights, whole, (_mix(random) >> np.uint64(11)) * 2.0**-53)
                places[t] = k
                here[k] += bundle
                n[k] += bundle
                if not fresh:
                    lead[k] = (alpha[k] + n[k]) / (total[k] + n[k]) if bursty else alpha[k] + n[k]
            if bundle != 1.0:  # what was added and taken away again may have left a rounding error
                here[:] = 0
                for t in range(begin, end):
                    here[places[t]] += bundle
            mine = out[j - offset]
            for k in range(size):
                mine[k] = 0
            for t in range(begin, end):
                k = places[t]
                given[t] = 0
                if here[k] > 0:
                    single = not bursty or here[k] == 1
                    given[t] = here[k] if single else row[k] * psi_gap(float(row[k]), float(here[k]))
                    mine[k] = given[t]
                    here[k] = 0
        for k in range(size):
            if n[k] > 0:
                alpha_tables[k] += alpha[k] * psi_gap(float(alpha[k]), n[k])
                if bursty:
                    total_terms[k] += psi_gap(float(total[k]), n[k])
