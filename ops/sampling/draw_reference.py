# SPDX-License-Identifier: Apache-2.0
"""Filters and draws of the sampling operators in float64: words, races, what is kept of a row."""

import numpy as np


def philox(seed, offset, place):
    """The four words of Philox 4x32-10 of each place, (places, 4); one offset, or one of each place in uint64."""
    place = np.asarray(place, np.uint64)
    half = np.uint64(32)
    low = np.uint64(0xFFFFFFFF)
    offset = offset if np.ndim(offset) else np.full_like(place, int(offset) % 2**64)
    counter = [place & low, place >> half, offset & low, offset >> half]
    key = [int(seed) % 2**32, int(seed) % 2**64 >> 32]
    for _ in range(10):
        a, b = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [(b >> half) ^ counter[1] ^ np.uint64(key[0]), b & low,
                   (a >> half) ^ counter[3] ^ np.uint64(key[1]), a & low]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return np.stack(counter, -1)


def coin(seed, offset, at):
    return ((philox(seed, offset, [2**32 + at])[0, 0] >> np.uint64(9)) + 0.5) / 2**23


def race(weights, seed, offset):
    """The token that wins."""
    words = philox(seed, offset, np.arange(-(-len(weights) // 4))).reshape(-1)[: len(weights)]
    return int(np.argmax(weights / -np.log1p(-(words + 0.5) / 2**32)))


def has_weights(row, is_probs):
    if len(row) == 0 or np.isnan(row).any() or row.max() == np.inf:
        return False
    return row.max() > 2.0**-100 and row.min() >= 0 if is_probs else row.max() > -np.inf


def weigh(row, temperature=1.0, is_probs=False):
    """What tokens weigh against the greatest; too little is never drawn."""
    with np.errstate(invalid="ignore"):
        weights = row / row.max() if is_probs else np.exp((row - row.max()) / temperature)
    weights[row == -np.inf] = 0
    return np.where(weights >= 2.0**-40, weights, 0)


def first(row, k):
    """Which are the k greatest, the first of equals."""
    kept = np.zeros(len(row), bool)
    kept[np.argsort(-row, kind="stable")[: k if 0 < k < len(row) else len(row)]] = True
    return kept


def share(row, weights, p):
    """Which are the fewest whose weights reach the share p."""
    kept = np.ones(len(row), bool)
    if p < 1:
        order = np.argsort(-row, kind="stable")
        sums = np.cumsum(weights[order])
        kept[order[1:]] = sums[:-1] < p * sums[-1]
    return kept


def filtered(row, k=0, top_p=1.0, min_p=0.0, temperature=1.0, is_probs=False, top_k_first=True):
    """The weights of what is kept, 0 elsewhere."""
    if temperature < 2.0**-100:
        k, temperature = 1, 1.0
    weights = weigh(row, temperature, is_probs)
    kept = first(row, k)
    if top_k_first:
        weights = np.where(kept, weights, 0)
    kept &= share(row, weights, top_p) & ((weights >= min_p) | (row == row.max()))
    return np.where(kept, weights, 0)


def draws(x, seed, offset, temperature, top_k, top_p, min_p, rows, top_k_first, is_probs):
    """Tokens and logprob of sample and sample_probs."""
    B = len(seed)
    tokens, logprob = np.full(B, -1), np.full(B, np.nan)
    each = {
        "offset": offset, "temperature": temperature, "k": top_k, "top_p": top_p, "min_p": min_p,
    }  # fmt: skip
    each = {name: np.broadcast_to(v, (B,)) for name, v in each.items() if v is not None}
    for b in range(B):
        at = b if rows is None else int(rows[b])
        given = {name: v[b] for name, v in each.items()}
        step = given.pop("offset")
        warm = given.get("temperature", 1.0)
        bad = not warm >= 0 or any(np.isnan(v) for v in given.values())
        if bad or not 0 <= at < len(x) or not has_weights(x[at], is_probs):
            continue
        weights = filtered(x[at], is_probs=is_probs, top_k_first=top_k_first, **given)
        tokens[b] = race(weights, seed[b], step)
        all_of_row = weigh(x[at], warm if warm >= 2.0**-100 else 1.0)
        below = (x[at, tokens[b]] - x[at].max()) / (warm if warm >= 2.0**-100 else 1.0)
        logprob[b] = below - np.log(all_of_row.sum())
    return tokens, logprob


def renormed(probs, top_k, top_p):
    """top_k_renorm and top_p_renorm."""
    out = np.full(probs.shape, np.nan)
    for row, to, k, p in zip(probs, out, top_k, top_p):
        if has_weights(row, True) and not np.isnan(p):
            kept = first(row, k) & share(row, weigh(row, is_probs=True), p)
            to[:] = np.where(kept, row, 0) / row[kept].sum()
    return out


def rest_of(target, draft):
    """What target has above draft, as a token's weight; None where a row is no distribution."""
    if not ((target >= 0) & (target <= 2.0**80) & (draft >= 0) & (draft <= 2.0**80)).all():
        return None
    rest = target - draft
    return np.where(rest >= 2.0**-100, rest, 0)


def token_behind(target, draft, without, seed, offset):
    """The token that is drawn where drafted ones end; of all of target where nothing is left."""
    for some in (True, False):
        weights = rest_of(target, draft if some else 0 * target)
        if weights is None:
            return -1
        if some:
            weights[without] = 0
        if (weights > 0).any():
            return race(weights, seed, offset)
    return -1


def chi_square_bound(cells):
    """Exceeded with probability 1e-6: Wilson and Hilferty's, of cells - 1 degrees of freedom."""
    n = cells - 1
    return n * (1 - 2 / (9 * n) + 4.753 * (2 / (9 * n)) ** 0.5) ** 3


def assert_drawn(tokens, weights):
    """Tokens are drawn in proportion to weights: chi-square, p > 1e-6."""
    expected = weights / weights.sum() * len(tokens)
    counts = np.bincount(tokens, minlength=len(weights))
    assert (counts[expected == 0] == 0).all()
    rare = (expected < 10) & (expected > 0)  # one cell
    found, wanted = counts[expected >= 10], expected[expected >= 10]
    if expected[rare].sum() >= 10:
        found, wanted = (
            np.append(found, counts[rare].sum()),
            np.append(wanted, expected[rare].sum()),
        )
    assert ((found - wanted) ** 2 / wanted).sum() < chi_square_bound(len(wanted))
