r"""Which topics do the words of a document come from? Collapsed answers, a block of documents at a time.

For a word that a document uses :math:`c` times, with the rest of the document held at its expected counts, write
:math:`a_k = (\alpha_k + n_k)/(H_k + n_k)`, :math:`H_k = \sum_w \eta_{kw}`. The number of its tokens in each topic then
has weights :math:`\prod_k a_k^{n_k} (\eta_k)_{n_k} / n_k!`, whose generating function is
:math:`G(t) = \prod_k (1 - a_k t)^{-\eta_k} = \sum_n g_n t^n`. So, with power sums :math:`p_j = \sum_k \eta_k a_k^j`,

.. math::
    n g_n = \sum_{j=1}^n p_j g_{n-j}, \quad
    E[n_k] = \frac{\eta_k}{g_c} \sum_{j=1}^c a_k^j g_{c-j}, \quad
    E[\eta_k(\psi(\eta_k + n_k) - \psi(\eta_k))] = \frac{\eta_k}{g_c} \sum_{j=1}^c \frac{a_k^j}{j} g_{c-j},

exactly: the expected counts and Minka's statistic, with sums and products only. For :math:`c = 1` this is the CVB0
update; as :math:`H \to \infty` it is plain LDA's.

The kernels release the interpreter lock and write only to what belongs to their chunk of documents, so threads run them
side by side.
"""

from __future__ import annotations

import math

import numpy as np

from robustly.topics.special import compiled, psi_gap

# Beyond this count (or for one that is not whole) the sum over compositions gives way to an approximation.
EXACT_COUNT = 256
# Of the statistic a document gave to the topics, this many entries per word are remembered, to be left out of the
# topics when the same document is read again. What a word spreads thinner than this is too little to matter.
REMEMBERED = 8


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _pair(eta, a, expected):
    """Expected counts of a word seen twice; returns g_2."""
    first = a.dtype.type(0)
    second = a.dtype.type(0)
    for k in range(a.size):
        weight = eta[k] * a[k]
        first += weight
        second += weight * a[k]
    g = a.dtype.type(0.5) * (first * first + second)
    scale = a.dtype.type(1) / g
    for k in range(a.size):
        expected[k] = eta[k] * a[k] * (first + a[k]) * scale
    return g


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _compositions(eta, a, count, g, power, expected, statistic):
    """Expected counts (or Minka's if `statistic`) of a word seen `count` times; returns log g_count."""
    largest = a.dtype.type(0)
    total = a.dtype.type(0)
    for k in range(a.size):
        largest = max(largest, a[k])
        total += eta[k] * a[k]
    # Any unit will do for a; in this one g_count is neither huge nor tiny, be η large or small.
    unit = largest + total * a.dtype.type(math.e / count)
    scale = a.dtype.type(1) / unit
    for k in range(a.size):
        a[k] *= scale
        power[k] = eta[k]
    sums = g[1]
    g = g[0]
    g[0] = 1.0
    for n in range(1, count + 1):
        total = a.dtype.type(0)
        for k in range(a.size):
            power[k] *= a[k]
            total += power[k]
        sums[n] = total
        value = 0.0
        for j in range(1, n + 1):
            value += sums[j] * g[n - j]
        g[n] = value / n
    for k in range(a.size):
        expected[k] = 0
    for j in range(count, 0, -1):
        part = g[count - j] / g[count]
        if statistic:
            part /= j
        term = a.dtype.type(part)
        for k in range(a.size):
            expected[k] = (expected[k] + term) * a[k]
    for k in range(a.size):
        expected[k] *= eta[k]
    return math.log(g[count]) + count * math.log(unit)


@compiled()
def _long_burst(eta, a, count, expected, statistic):
    r"""The same for a count too large, or not whole, to sum over.

    Where η is small beside the count, all its tokens are taken to be in one topic; where it is not, tokens are
    Poissonised, :math:`\sum_k \eta_k r_k/(1-r_k) = c` with :math:`r_k \propto a_k`. Minka's statistic and the evidence
    take the former view always; with a single topic both are exact.
    """
    largest = 0.0
    whole = 0.0
    top = -np.inf
    for k in range(a.size):
        largest = max(largest, float(a[k]))
        whole += eta[k]
        expected[k] = math.lgamma(eta[k] + count) - math.lgamma(eta[k]) + count * math.log(a[k])
        top = max(top, float(expected[k]))
    in_one = 0.0
    for k in range(a.size):
        expected[k] = math.exp(expected[k] - top)
        in_one += expected[k]
    scale = count / in_one
    if whole > 1.0 + count / 16.0:
        low, high = -700.0, 0.0
        for _ in range(64):
            middle = 0.5 * (low + high)
            gap = math.exp(middle)
            total = 0.0
            for k in range(a.size):
                u = a[k] / largest
                total += eta[k] * u * (1.0 - gap) / ((1.0 - u) + u * gap)
            if total > count:
                low = middle
            else:
                high = middle
        gap = math.exp(low)
        total = 0.0
        for k in range(a.size):
            u = a[k] / largest
            expected[k] = eta[k] * u / ((1.0 - u) + u * gap)
            total += expected[k]
        scale = count / total
    for k in range(a.size):
        expected[k] *= scale
        if statistic:
            expected[k] *= eta[k] * psi_gap(eta[k], count) / count
    return math.log(in_one) + top - math.lgamma(count + 1.0)


@compiled()
def _is_exact(count):
    return count <= EXACT_COUNT and count == math.floor(count)


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _sweep(counts, rows, alpha, total, bursty, n, out, scratch, g):
    """Visit every word of one document once. Returns how far the counts moved and the words' log evidence."""
    number = n.dtype.type
    a, moved_row, power = scratch[0], scratch[1], scratch[2]
    one = number(1)
    zero = number(0)
    moved = 0.0
    evidence = 0.0
    for j in range(counts.size):
        count = counts[j]
        eta = rows[j]
        old = out[j]
        own = one / count
        change = zero
        if bursty:
            for k in range(n.size):
                rest = max(n[k] - old[k] * own, zero)
                a[k] = (alpha[k] + rest) / (total[k] + rest)
        else:
            for k in range(n.size):
                a[k] = alpha[k] + max(n[k] - old[k] * own, zero)
        if count == one or not bursty:
            weight = zero
            for k in range(n.size):
                a[k] *= eta[k]
                weight += a[k]
            evidence += count * math.log(weight)
            scale = count / weight
            for k in range(n.size):
                value = a[k] * scale
                step = value - old[k]
                change += abs(step)
                n[k] += step
                old[k] = value
        else:
            if count == number(2):
                evidence += math.log(_pair(eta, a, moved_row))
            elif _is_exact(count):
                evidence += _compositions(eta, a, int(count), g, power, moved_row, False)
            else:
                evidence += _long_burst(eta, a, count, moved_row, False)
            for k in range(n.size):
                step = moved_row[k] - old[k]
                change += abs(step)
                n[k] += step
                old[k] = moved_row[k]
        moved += change
    return moved, evidence


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _statistic(counts, rows, alpha, total, n, out, scratch, g):
    """Turn one document's expected counts into Minka's statistic. A word seen once has the two equal."""
    number = n.dtype.type
    a, table_counts, power = scratch[0], scratch[1], scratch[2]
    for j in range(counts.size):
        count = counts[j]
        if count == number(1):
            continue
        eta = rows[j]
        own = number(1) / count
        for k in range(n.size):
            rest = max(n[k] - out[j, k] * own, number(0))
            a[k] = (alpha[k] + rest) / (total[k] + rest)
        if _is_exact(count):
            _compositions(eta, a, int(count), g, power, table_counts, True)
        else:
            _long_burst(eta, a, count, table_counts, True)
        for k in range(n.size):
            out[j, k] = table_counts[k]


@compiled()
def _remember(values, topics, amounts):
    """Keep the largest entries of one word's statistic."""
    kept = amounts.size
    amounts[:] = 0
    topics[:] = 0
    smallest = 0
    for k in range(values.size):
        if values[k] > amounts[smallest]:
            amounts[smallest] = values[k]
            topics[smallest] = k
            for r in range(kept):
                if amounts[r] < amounts[smallest]:
                    smallest = r


@compiled(fastmath={"reassoc", "contract", "nsz"})
def collapsed(
    starts,
    words,
    counts,
    eta,
    alpha,
    total,
    bursty,
    share,
    floor,
    leave_out,
    topics,
    amounts,
    state,
    warm,
    sweeps,
    tol,
    statistic,
    table,
    out,
    evidence,
    alpha_table_counts,
    total_terms,
):
    r"""The E-step for a chunk of documents.

    Parameters
    ----------
    starts, words, counts : the documents as CSR arrays
    eta, alpha, total : η (V, K), α (K,), Σ_w η (K,); for plain LDA η is the topics' word probabilities
    share, floor : what one unit of statistic is worth in η for each topic (K,), and the least η a word keeps (V,), in
        those units, when a document's own part is left out
    topics, amounts : that part, (pairs, REMEMBERED); read if `leave_out`, written if `statistic`
    state : expected tokens per document and topic (D, K), read if `warm`, always written
    table : (V, K) Minka's statistic if `statistic`, else expected counts, added to; or of no rows, if not wanted
    out : (pairs, K) expected counts; or of no rows, if not wanted
    evidence : (D,) log probability of each document's tokens, each word given the others
    alpha_table_counts, total_terms : (K,) sums for the updates of α and Σ_w η, added to
    """
    number = eta.dtype.type
    size = eta.shape[1]
    longest = 0
    for d in range(starts.size - 1):
        longest = max(longest, starts[d + 1] - starts[d])
    rows = np.empty((longest, size), eta.dtype)
    own_room = np.empty((longest, size), eta.dtype)
    scratch = np.empty((3, size), eta.dtype)
    absent = np.empty(size, eta.dtype)
    n = np.empty(size, eta.dtype)
    g = np.empty((2, EXACT_COUNT + 1))
    whole = 0.0
    for k in range(size):
        whole += alpha[k]
    for d in range(starts.size - 1):
        begin, end = starts[d], starts[d + 1]
        length = end - begin
        document = out[begin:end] if out.shape[0] else own_room[:length]
        for j in range(length):
            row = eta[words[begin + j]]
            for k in range(size):
                rows[j, k] = row[k]
            if leave_out:
                least = floor[words[begin + j]]
                for r in range(REMEMBERED):
                    k = topics[begin + j, r]
                    rows[j, k] = max(row[k] - share[k] * amounts[begin + j, r], share[k] * least)
        if warm:
            for k in range(size):
                scratch[0, k] = alpha[k] + state[d, k]
                if bursty:
                    scratch[0, k] /= total[k] + state[d, k]
        else:
            for k in range(size):
                scratch[0, k] = alpha[k]
                if bursty:
                    scratch[0, k] /= total[k]
        n[:] = 0
        tokens = 0.0
        log_orders = 0.0
        for j in range(length):
            weight = number(0)
            for k in range(size):
                document[j, k] = rows[j, k] * scratch[0, k]
                weight += document[j, k]
            scale = counts[begin + j] / weight
            tokens += counts[begin + j]
            if bursty and counts[begin + j] != number(1):
                log_orders += math.lgamma(counts[begin + j] + 1.0)
            for k in range(size):
                document[j, k] *= scale
                n[k] += document[j, k]
        mine = counts[begin:end]
        found = 0.0
        for _ in range(sweeps):
            moved, found = _sweep(mine, rows, alpha, total, bursty, n, document, scratch, g)
            if moved < tol * tokens:
                break
        # From weights to log probabilities of the tokens in their order.
        evidence[d] = found + log_orders - tokens * math.log(whole + max(tokens - 1.0, 0.0))
        # Thousands of small steps in single precision drift; the next user of the counts gets them summed afresh.
        n[:] = 0
        absent[:] = 1
        for j in range(length):
            own = number(1) / mine[j]
            for k in range(size):
                n[k] += document[j, k]
                absent[k] *= max(number(1) - document[j, k] * own, number(0))
        for k in range(size):
            state[d, k] = n[k]
        if statistic:
            for k in range(size):
                # n is an expectation. Its chance to be nothing at all matters where α is small (Teh et al. 2007).
                present = 1.0 - absent[k]
                if present > 1e-10:
                    alpha_table_counts[k] += present * alpha[k] * psi_gap(alpha[k], n[k] / present)
                if bursty:
                    total_terms[k] += psi_gap(total[k], n[k])
            if bursty:
                _statistic(mine, rows, alpha, total, n, document, scratch, g)
            for j in range(length):
                _remember(document[j], topics[begin + j], amounts[begin + j])
                if not bursty:
                    for r in range(REMEMBERED):
                        amounts[begin + j, r] /= mine[j]
        if table.shape[0]:
            for j in range(length):
                target = table[words[begin + j]]
                for k in range(size):
                    target[k] += document[j, k]
