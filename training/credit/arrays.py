"""The arithmetic of the estimators, as pure functions of float64 arrays.

Suffixes name the axes: ``_G`` rollouts of a group, ``_S`` steps, ``_T`` steps of one line in time order, ``_K`` cells.
NaN in a result means *not assigned* (no estimate exists); it becomes None in an estimator's answer. NaN in an input is
refused.

A *cell* is a set of steps that are compared with one another (same policy and visit, same anchor, …). Statistics of a
cell count rollouts, never rows: a rollout's steps in the cell are averaged first, then the rollouts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from training.credit.dag import FloatArray, IntArray

END, BRANCHES = -1, -2
"""Special entries of ``successor_S``: nothing follows; several parallel steps follow."""


def _vector(name: str, values: ArrayLike) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must be a vector, not of shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds values that are not finite; leave such rollouts out first")
    return array


def _labels(name: str, values: ArrayLike, size: int, above: int | None = None) -> IntArray:
    array: NDArray[np.int64] = np.asarray(values, dtype=np.int64)
    if array.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), not {array.shape}")
    if size and (array.min() < 0 or (above is not None and array.max() >= above)):
        raise ValueError(f"{name} must hold indices in [0, {above if above is not None else '…'})")
    return array


# Trajectory level --------------------------------------------------------------------------------------------------


def grpo_advantages(return_G: ArrayLike, eps: float = 1e-4) -> FloatArray:
    """A_i = (R_i - μ) / (σ + ε), σ with G-1 (Shao et al. 2024, arXiv 2402.03300, eq. in §4.1.2; ε as in TRL).

    A group of one and constant rewards give 0.
    """
    r = _vector("return_G", return_G)
    if r.size < 2 or np.ptp(r) == 0.0:
        return np.zeros_like(r)
    return np.asarray((r - r.mean()) / (r.std(ddof=1) + eps), dtype=np.float64)


def dr_grpo_advantages(return_G: ArrayLike) -> FloatArray:
    """A_i = R_i - μ (Liu et al. 2025, arXiv 2503.20783, §3.2). A group of one and constant rewards give 0."""
    r = _vector("return_G", return_G)
    if r.size < 2 or np.ptp(r) == 0.0:
        return np.zeros_like(r)
    return np.asarray(r - r.mean(), dtype=np.float64)


def rloo_advantages(return_G: ArrayLike) -> FloatArray:
    """A_i = R_i - 1/(G-1) Σ_{j≠i} R_j = G/(G-1) (R_i - μ) (Ahmadian et al. 2024, arXiv 2402.14740, eq. 8).

    A group of one has no one to leave in: NaN (not assigned). Constant rewards give 0.
    """
    r = _vector("return_G", return_G)
    if r.size < 2:
        return np.full_like(r, np.nan)
    if np.ptp(r) == 0.0:
        return np.zeros_like(r)
    return np.asarray((r - r.mean()) * (r.size / (r.size - 1)), dtype=np.float64)


def whiten(value_S: ArrayLike, weight_S: ArrayLike, eps: float = 1e-8) -> FloatArray:
    """(x - μ_w) / sqrt(var_w + ε): how REINFORCE++ normalises a batch (Hu 2025, arXiv 2501.03262).

    ε is in the root, as in verl. μ_w = Σ w x with w scaled to Σ w = 1, var_w = Σ w (x - μ_w)² / (1 - Σ w²): for equal
    weights the usual G-1 form. A single value, and constant values, give 0.
    """
    x = _vector("value_S", value_S)
    w = _vector("weight_S", weight_S)
    if w.shape != x.shape or (w <= 0).any():
        raise ValueError(f"weight_S must be positive and of shape {x.shape}, not {w.shape}")
    if x.size < 2 or np.ptp(x) == 0.0:
        return np.zeros_like(x)
    w = w / w.sum()
    centred = x - (w * x).sum()
    variance = (w * centred**2).sum() / (1.0 - (w**2).sum())
    return np.asarray(centred / np.sqrt(variance + eps), dtype=np.float64)


# Cells of steps ----------------------------------------------------------------------------------------------------


def cell_rollouts(value_S: ArrayLike, rollout_S: ArrayLike, cell_S: ArrayLike, G: int, K: int) -> FloatArray:
    """[K, G] mean of each rollout's values in each cell; NaN where a rollout has no step in a cell."""
    v = _vector("value_S", value_S)
    rollout, cell = _labels("rollout_S", rollout_S, v.size, G), _labels("cell_S", cell_S, v.size, K)
    total, count = np.zeros((K, G)), np.zeros((K, G))
    np.add.at(total, (cell, rollout), v)
    np.add.at(count, (cell, rollout), 1.0)
    return np.where(count > 0, total / np.maximum(count, 1.0), np.nan)


def leave_one_out_baseline(value_S: ArrayLike, rollout_S: ArrayLike, cell_S: ArrayLike, G: int) -> FloatArray:
    """b_s = 1/(G-1) Σ_{j≠i} x_j(c) for step s of rollout i in cell c, x_j(c) rollout j's mean there, 0 if it has none.

    A rollout without a step in the cell has ended (or went elsewhere): its return from there on is 0, and leaving it
    out instead would bias the baseline by who survived. The whole rollout i is left out, so b_s does not depend on
    anything rollout i did. A group of one has no baseline: NaN.
    """
    v = _vector("value_S", value_S)
    cell = np.asarray(cell_S, dtype=np.int64)
    if G < 2:
        return np.full_like(v, np.nan)
    K = int(cell.max()) + 1 if cell.size else 0
    table = np.nan_to_num(cell_rollouts(v, rollout_S, cell, G, K), nan=0.0)
    rollout = np.asarray(rollout_S, dtype=np.int64)
    # summed over the others rather than total minus own, so that the own value cannot enter even by rounding
    others = np.where(np.arange(G)[None, :] == rollout[:, None], 0.0, table[cell])
    return np.asarray(others.sum(axis=1) / (G - 1), dtype=np.float64)


def cell_advantages(
    value_S: ArrayLike,
    rollout_S: ArrayLike,
    cell_S: ArrayLike,
    G: int,
    *,
    normalise: bool = False,
    eps: float = 1e-4,
) -> FloatArray:
    """A_s = x_s - μ_c, or (x_s - μ_c) / (σ_c + ε): GiGPO's step term (arXiv 2505.10978, eq. 7), counted per rollout.

    μ_c = 1/n Σ_j x_j(c) over the n rollouts with steps in the cell, x_j(c) rollout j's mean there, and
    σ_c² = 1/(n-1) Σ_j mean_{s∈j} (x_s - μ_c)²: with one step per rollout the usual G-1 form. A cell that only
    one rollout visited gives 0, however often it did: a rollout is not its own baseline. A constant cell gives 0.
    """
    v = _vector("value_S", value_S)
    cell = np.asarray(cell_S, dtype=np.int64)
    K = int(cell.max()) + 1 if cell.size else 0
    table = cell_rollouts(v, rollout_S, cell, G, K)
    result = np.zeros_like(v)
    for k in range(K):
        visited, rows = np.isfinite(table[k]), cell == k
        n = int(visited.sum())
        if n < 2 or np.ptp(v[rows]) == 0.0:
            continue
        centred = v - table[k][visited].mean()
        squares = cell_rollouts(centred[rows] ** 2, np.asarray(rollout_S)[rows], np.zeros(rows.sum()), G, 1)
        spread = np.sqrt(np.nansum(squares) / (n - 1)) + eps if normalise else 1.0
        result[rows] = centred[rows] / spread
    return result


def cell_means(value_S: ArrayLike, rollout_S: ArrayLike, cell_S: ArrayLike, G: int) -> FloatArray:
    """[S] mean of each step's cell over rollouts, the step's own rollout included."""
    cell = np.asarray(cell_S, dtype=np.int64)
    if cell.size == 0:
        return np.zeros(0)
    table = cell_rollouts(value_S, rollout_S, cell, G, int(cell.max()) + 1)
    return np.asarray(np.nanmean(table, axis=1)[cell], dtype=np.float64)


# Time --------------------------------------------------------------------------------------------------------------


def discounted_returns(reward_T: ArrayLike, gamma: float, final: float = 0.0) -> FloatArray:
    """R_t = r_t + γ R_{t+1} on a line, R_T = ``final`` (Sutton & Barto 2018, eq. 3.9)."""
    r = _vector("reward_T", reward_T)
    result = np.zeros_like(r)
    after = final
    for t in range(r.size - 1, -1, -1):
        after = result[t] = r[t] + gamma * after
    return result


def gae_advantages(reward_T: ArrayLike, value_T: ArrayLike, gamma: float, lam: float, final: float = 0.0) -> FloatArray:
    """δ_t = r_t + γ V_{t+1} - V_t;  A_t = δ_t + γλ A_{t+1} (Schulman et al. 2016, arXiv 1506.02438, eqs. 11, 16).

    V_T = ``final``, A_T = 0. One decision is one time step (turn level). With a single step A = r - V.
    """
    r, v = _vector("reward_T", reward_T), _vector("value_T", value_T)
    if v.shape != r.shape:
        raise ValueError(f"value_T must have shape {r.shape}, not {v.shape}")
    successor = np.arange(1, r.size + 1)
    successor[-1:] = END
    bootstrapped = r.copy()
    bootstrapped[-1:] += gamma * final
    return lambda_returns(bootstrapped, v, successor, discounted_returns(r, gamma, final), gamma, lam) - v


def lambda_returns(
    reward_S: ArrayLike, value_S: ArrayLike, successor_S: ArrayLike, return_S: ArrayLike, gamma: float, lam: float
) -> FloatArray:
    """G_s = r_s + γ[(1-λ) V_c + λ G_c], c the only step that follows s (Sutton & Barto 2018, eq. 12.2, as a recursion).

    ``successor_S`` holds c, or END where nothing follows (then G_s = r_s), or BRANCHES where several parallel steps
    follow. Their joint value is not the sum of their values (a join would count twice), so there G_s is the observed
    return ``return_S``: unbiased, as with λ = 1. With λ = 1 it is the observed return everywhere.
    """
    r, v = _vector("reward_S", reward_S), _vector("value_S", value_S)
    observed = _vector("return_S", return_S)
    successor = np.asarray(successor_S, dtype=np.int64)
    if not r.shape == v.shape == observed.shape == successor.shape:
        raise ValueError(
            f"shapes differ: rewards {r.shape}, values {v.shape}, successors {successor.shape}, "
            f"returns {observed.shape}"
        )
    if not (0.0 <= gamma <= 1.0 and 0.0 <= lam <= 1.0):
        raise ValueError(f"gamma and lam must lie in [0, 1], not {gamma} and {lam}")
    result = np.full_like(r, np.nan)
    for start in range(r.size):
        path = [start]
        while successor[path[-1]] >= 0 and np.isnan(result[path[-1]]) and len(path) <= r.size:
            path.append(int(successor[path[-1]]))
        for s in reversed(path):
            c = int(successor[s])
            if c == BRANCHES:
                result[s] = observed[s]
            elif c == END:
                result[s] = r[s]
            elif np.isnan(result[s]):
                result[s] = r[s] + gamma * ((1.0 - lam) * v[c] + lam * result[c])
    if np.isnan(result).any():
        raise ValueError("successor_S holds a cycle")
    return result


def lstd_values(
    reward_N: ArrayLike,
    state_N: ArrayLike,
    next_N: ArrayLike,
    gamma: float,
    prior_K: ArrayLike,
    strength: float,
) -> FloatArray:
    """[K] values of the empirical decision process: least-squares TD, one-hot states (Bradtke & Barto 1996).

        [Σ_n φ_n (φ_n - γ φ'_n)ᵀ + κ I] V = Σ_n φ_n r_n + κ V⁰

    ``next_N`` is the state that follows, or END (φ' = 0). ``strength`` κ is the number of imagined visits at the value
    ``prior_K``: with κ = 0 it is the certainty-equivalent value itself, a state without a visit has V⁰.
    """
    r, prior = _vector("reward_N", reward_N), _vector("prior_K", prior_K)
    K = prior.size
    state = _labels("state_N", state_N, r.size, K)
    after = np.asarray(next_N, dtype=np.int64)
    if after.shape != r.shape or (after.size and (after.min() < END or after.max() >= K)):
        raise ValueError(f"next_N must have shape {r.shape} and hold states or END")
    if strength < 0.0:
        raise ValueError(f"strength must not be negative, got {strength}")
    A, b = strength * np.eye(K), strength * prior
    np.add.at(A, (state, state), 1.0)
    on = after >= 0
    np.subtract.at(A, (state[on], after[on]), gamma)
    np.add.at(b, state, r)
    unseen = np.ones(K, dtype=bool)
    unseen[state] = False
    A[unseen, unseen] = 1.0
    b[unseen] = prior[unseen]
    try:
        return np.asarray(np.linalg.solve(A, b), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise ValueError("the batch holds a state from which no episode ends; give strength > 0") from None


def pair_means(sample_S: ArrayLike, pair_S: ArrayLike, shrink: float) -> FloatArray:
    """A_s = Σ_{u in pair of s} x_u / (n + κ): the mean of a pair's n samples, shrunk towards 0 by κ imagined ones."""
    x = _vector("sample_S", sample_S)
    pair = _labels("pair_S", pair_S, x.size)
    if shrink < 0.0:
        raise ValueError(f"shrink must not be negative, got {shrink}")
    if pair.size == 0:
        return np.zeros(0)
    return np.asarray(np.bincount(pair, weights=x)[pair] / (np.bincount(pair)[pair] + shrink), dtype=np.float64)
