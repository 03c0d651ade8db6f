r"""Which topics do the words of a document come from? The mean-field answer, with a bound that never falls.

Algorithm 2 of Wang & Blei for robust LDA. With :math:`q(\beta_{dk}) = \mathrm{Dir}(\eta_k + n_{dk\cdot})` and
:math:`q(\theta_d) = \mathrm{Dir}(\alpha + n_d)` at their best for the current :math:`q(z) = \phi`, the bound of one
document is, with :math:`n_{dkw} = c_{dw} \phi_{dwk}`,

.. math::
    \sum_k \Big[\sum_w \log\frac{\Gamma(\eta_{kw} + n_{dkw})}{\Gamma(\eta_{kw})}
    - \log\frac{\Gamma(H_k + n_{dk})}{\Gamma(H_k)}
    + \log\frac{\Gamma(\alpha_k + n_{dk})}{\Gamma(\alpha_k)}\Big] - \log\frac{\Gamma(A + N_d)}{\Gamma(A)}
    - \sum_{wk} n_{dkw} \log \phi_{dwk}.

Words that a document does not have keep their prior in :math:`q(\beta_{dk})` and drop out, so nothing of size
D × K × V is ever formed. The M-step raises the same bound, with :math:`q(\beta)` moving along, by Minka's fixed point.
"""

from __future__ import annotations

import math

import numpy as np

from robustly.topics.special import compiled, log_rising, psi, psi_gap


@compiled()
def mean_field(
    starts,
    words,
    counts,
    eta,
    alpha,
    total,
    bursty,
    state,
    warm,
    sweeps,
    tol,
    statistic,
    table,
    out,
    bound,
    alpha_table_counts,
    total_terms,
):
    """The E-step for a chunk of documents; the arguments are those of `kernels.collapsed`.

    `out` has the expected counts of all pairs: if `warm`, the last pass's on entry, so that the bound climbs on.
    """
    size = eta.shape[1]
    n = np.empty(size)
    fresh = np.empty(size)
    lead = np.empty(size)
    weights = np.empty(size)
    whole = 0.0
    for k in range(size):
        whole += alpha[k]
    for d in range(starts.size - 1):
        begin, end = starts[d], starts[d + 1]
        tokens = 0.0
        for j in range(begin, end):
            tokens += counts[j]
        for k in range(size):
            n[k] = 0.0 if warm else tokens / size
        if warm:
            for j in range(begin, end):
                for k in range(size):
                    n[k] += out[j, k]
        for sweep in range(sweeps):
            for k in range(size):
                lead[k] = psi(alpha[k] + n[k])
                if bursty:
                    lead[k] -= psi(total[k] + n[k])
            fresh[:] = 0
            moved = 0.0
            for j in range(begin, end):
                count = counts[j]
                row = eta[words[j]]
                old = out[j]
                top = -np.inf
                for k in range(size):
                    if not bursty:
                        weights[k] = lead[k] + math.log(row[k])
                    elif sweep == 0 and not warm:
                        weights[k] = lead[k] + psi(float(row[k]))
                    else:
                        weights[k] = lead[k] + psi(row[k] + old[k])
                    top = max(top, weights[k])
                weight = 0.0
                for k in range(size):
                    weights[k] = math.exp(weights[k] - top)
                    weight += weights[k]
                for k in range(size):
                    value = count * weights[k] / weight
                    if sweep > 0 or warm:
                        moved += abs(value - old[k])
                    old[k] = value
                    fresh[k] += value
            for k in range(size):
                n[k] = fresh[k]
            if (sweep > 0 or warm) and moved < tol * tokens:
                break
        value = -log_rising(whole, tokens)
        for k in range(size):
            state[d, k] = n[k]
            value += log_rising(float(alpha[k]), n[k])
            if bursty:
                value -= log_rising(float(total[k]), n[k])
            if statistic:
                alpha_table_counts[k] += alpha[k] * psi_gap(float(alpha[k]), n[k])
                if bursty:
                    total_terms[k] += psi_gap(float(total[k]), n[k])
        for j in range(begin, end):
            row = eta[words[j]]
            mine = out[j]
            for k in range(size):
                expected = float(mine[k])
                if expected > 1e-290:  # below, the quotient underflows and its part of the bound is nothing
                    value -= expected * math.log(expected / counts[j])
                    if bursty:
                        value += log_rising(float(row[k]), expected)
                    else:
                        value += expected * math.log(row[k])
                if statistic:
                    table[words[j], k] += row[k] * psi_gap(float(row[k]), expected) if bursty else expected
        bound[d] = value
