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
# Topics are weighed this many at a time, so that a draw need not walk through all of them.
SEGMENT = 32
# Bursts of at most this many tokens move together; beyond, single precision would overflow.
LONGEST_BURST = 12


@compiled()
def _mix(state):
    """One step of the splitmix64 generator's output function."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _weigh(lead, row, sums):
    """Running sums, by segments, of the topics' chances for one token, not normalised; returns the whole sum."""
    whole = row.dtype.type(0)
    for s in range(sums.size):
        part = row.dtype.type(0)
        for k in range(s * SEGMENT, min((s + 1) * SEGMENT, row.size)):
            part += lead[k] * row[k]
        whole += part
        sums[s] = whole
    return whole


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _choose(lead, row, sums, uniform):
    """The topic that a uniform number falls on: first its segment, then its place there."""
    left = row.dtype.type(uniform) * sums[sums.size - 1]
    s = 0
    while s < sums.size - 1 and sums[s] <= left:
        s += 1
    if s > 0:
        left -= sums[s - 1]
    last = min((s + 1) * SEGMENT, row.size) - 1
    for k in range(s * SEGMENT, last):
        left -= lead[k] * row[k]
        if left < 0:
            return k
    # Rounding may carry past the end; the last topic with any weight is as near as it gets.
    while last > 0 and lead[last] * row[last] <= 0:
        last -= 1
    return last


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _weigh_burst(count, alpha, total, bursty, n, row, unit, weights, sums):
    """The same for `count` tokens of one word that stay together: rising factorials in place of the last factors."""
    number = row.dtype.type
    for k in range(row.size):
        weights[k] = number(1)
    for i in range(count):
        more = number(i)
        if bursty:
            for k in range(row.size):
                here = n[k] + more
                weights[k] *= (alpha[k] + here) * (row[k] + more) / (total[k] + here)
        else:
            for k in range(row.size):
                weights[k] *= (alpha[k] + n[k] + more) * (row[k] + unit[k] * more)
    whole = number(0)
    for s in range(sums.size):
        for k in range(s * SEGMENT, min((s + 1) * SEGMENT, row.size)):
            whole += weights[k]
        sums[s] = whole


@compiled()
def _weigh_bundle(bundle, alpha, total, bursty, n, row, weights, sums):
    """The same for `bundle` tokens (perhaps not a whole number) that move together, into `weights`."""
    top = -np.inf
    for k in range(row.size):
        value = log_rising(alpha[k] + n[k], bundle)
        if bursty:
            value += log_rising(float(row[k]), bundle) - log_rising(total[k] + n[k], bundle)
        else:
            value += bundle * math.log(row[k])
        weights[k] = value
        top = max(top, weights[k])
    whole = weights.dtype.type(0)
    for s in range(sums.size):
        for k in range(s * SEGMENT, min((s + 1) * SEGMENT, row.size)):
            weights[k] = math.exp(weights[k] - top)
            whole += weights[k]
        sums[s] = whole


@compiled()
def _table_counts(eta, count):
    """Expected table_counts of `count` tokens in one topic, η (ψ(η + n) − ψ(η)): a short sum where the count is small."""
    if count <= 16.0 and count == math.floor(count):
        table_counts = 1.0
        for i in range(1, int(count)):
            table_counts += eta / (eta + i)
        return table_counts
    return eta * psi_gap(eta, count)


@compiled()
def drawn(
    numbers,
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
    together,
    seed,
    slots,
    places,
    given,
    table,
    evidence,
    alpha_table_counts,
    total_terms,
):
    r"""Draw the topics of all tokens of a chunk of documents once; arguments as in `kernels.collapsed`, and

    Parameters
    ----------
    numbers : (D,) the documents' places in the corpus
    fresh : nothing was drawn yet; the first draws are independent, from the expected counts in `state`
    together : tokens of a word that are all in one topic move together, which single moves seldom do: each holds back the
        others. Passes of both kinds in turn leave the posterior as it is
    seed : of this pass, uint64
    slots : (pairs + 1,) where each pair's tokens (or bundles) begin in `places` and `given`
    places : topic of each token, read unless `fresh`, written
    given : the statistic that the last pass took from the document, at the first token of each word and topic; read,
        to be left out of the topics, and written
    evidence : (D,) log probability of each token given the other tokens and their topics, summed; bundles are left out
    """
    size = eta.shape[1]
    number = eta.dtype.type
    n = np.zeros(size)
    lead = np.empty(size, eta.dtype)
    row = np.empty(size, eta.dtype)
    weights = np.empty(size, eta.dtype)
    ones = np.ones(size, eta.dtype)
    sums = np.empty((size + SEGMENT - 1) // SEGMENT, eta.dtype)
    here = np.zeros(size)
    unit = ones if bursty else share
    led, weight = number(0), number(0)
    least = number(LEAST_ETA)
    whole = 0.0
    for k in range(size):
        whole += alpha[k]
    for d in range(starts.size - 1):
        random = _mix(seed + np.uint64(numbers[d]) * np.uint64(0xD1342543DE82EF95))
        length = 0.0
        logs = 0.0
        product = 1.0
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
            several = end - begin > 1
            length += counts[j]
            source = eta[word]
            for k in range(size):
                row[k] = source[k]
            if not fresh:
                # What the document gave to the topics is taken out of them, its other tokens of this word are put in.
                for t in range(begin, end):
                    k = places[t]
                    if given[t] > 0:
                        row[k] = max(row[k] - share[k] * given[t], share[k] * floor[word], least)
                if several:
                    for t in range(begin, end):
                        row[places[t]] += unit[places[t]] * bundle
            if together and several and end - begin <= LONGEST_BURST and bundle == 1.0:
                was = places[begin]
                whole_burst = True
                for t in range(begin + 1, end):
                    whole_burst = whole_burst and places[t] == was
                if whole_burst:
                    count = number(end - begin)
                    n[was] -= count
                    row[was] -= unit[was] * count
                    _weigh_burst(end - begin, alpha, total, bursty, n, row, unit, weights, sums)
                    random += np.uint64(0x9E3779B97F4A7C15)
                    k = _choose(ones, weights, sums, (_mix(random) >> np.uint64(11)) * 2.0**-53)
                    n[k] += count
                    for t in range(begin, end):
                        places[t] = k
                        given[t] = 0
                    given[begin] = _table_counts(float(max(row[k], least)), count) if bursty else count
                    if k != was:
                        lead[was] = (alpha[was] + n[was]) / (total[was] + n[was]) if bursty else alpha[was] + n[was]
                        lead[k] = (alpha[k] + n[k]) / (total[k] + n[k]) if bursty else alpha[k] + n[k]
                    continue
            # A token that stays where it was leaves everything as it was, so the next one of its word in that topic has the
            # same chances: `out_of` is the topic that one token is taken out of at present, for which they were weighed.
            out_of = -1
            for t in range(begin, end):
                was = int(places[t])
                if out_of < 0 or (was != out_of and not fresh):
                    if not fresh:
                        if out_of >= 0:
                            n[out_of] += bundle
                            row[out_of] += unit[out_of] * bundle
                            lead[out_of] = led
                        led = lead[was]
                        if several:
                            row[was] -= unit[was] * bundle
                        left = max(n[was] - bundle, 0.0)
                        n[was] = left
                        lead[was] = (alpha[was] + left) / (total[was] + left) if bursty else alpha[was] + left
                    if bundle == 1.0 or fresh:
                        weight = _weigh(lead, row, sums)
                    else:
                        _weigh_bundle(bundle, alpha, total, bursty, n, row, weights, sums)
                    out_of = was
                random += np.uint64(0x9E3779B97F4A7C15)
                uniform = (_mix(random) >> np.uint64(11)) * 2.0**-53
                if bundle == 1.0 or fresh:
                    product *= weight
                    if product < 1e-200 or product > 1e200:
                        logs += math.log(product)
                        product = 1.0
                    k = _choose(lead, row, sums, uniform)
                else:
                    k = _choose(ones, weights, sums, uniform)
                places[t] = k
                if fresh:
                    n[k] += bundle
                elif k != out_of:
                    n[k] += bundle
                    if several:
                        row[k] += unit[k] * bundle
                    lead[k] = (alpha[k] + n[k]) / (total[k] + n[k]) if bursty else alpha[k] + n[k]
                    out_of = -1
            if out_of >= 0 and not fresh:
                n[out_of] += bundle
                lead[out_of] = led
                if several:
                    row[out_of] += unit[out_of] * bundle
            if not several:
                given[begin] = bundle
                if bursty and bundle != 1.0:
                    k = places[begin]
                    given[begin] = _table_counts(float(max(row[k], least)), bundle)
                continue
            for t in range(begin, end):
                here[places[t]] += bundle
            for t in range(begin, end):
                k = places[t]
                given[t] = 0
                if here[k] > 0:
                    prior = row[k] if fresh else row[k] - unit[k] * number(here[k])
                    given[t] = _table_counts(float(max(prior, least)), here[k]) if bursty else here[k]
                    here[k] = 0
        evidence[d] = logs + math.log(product) - length * math.log(whole + max(length - 1.0, 0.0))
        for j in range(starts[d], starts[d + 1]):
            target = table[words[j]]
            for t in range(slots[j], slots[j + 1]):
                if given[t] > 0:
                    target[places[t]] += given[t]
        for k in range(size):
            if n[k] > 0:
                alpha_table_counts[k] += _table_counts(float(alpha[k]), n[k])
                if bursty:
                    total_terms[k] += _table_counts(float(total[k]), n[k]) / total[k]
