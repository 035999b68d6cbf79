"""What a curious worker can compute from its shares: the masking is tested against these attacks.

A worker holds shares Y = W + R (n, d) and suspects a candidate (d,) to be one client's update. An
attack turns the two into one number that tends to be larger where the suspicion is true, and `auc`
says how well that number tells true suspicions from false ones.
"""

import math

import numpy as np

from ostraka.arrays import Float64


def matched_filter(share: Float64, candidate: Float64) -> float:
    """<Y_i, candidate>, from one row alone. share, candidate: (d,).

    No test is better against independent Gaussian noise. Its signal-to-noise ratio is
    |W_i| / sigma, which the budget of law 6 keeps small.
    """
    return float(share @ candidate)


def polar(shares: Float64, *, sigma: float) -> Float64:
    """Z = Y - sigma sqrt(d) polar(Y), with polar(Y) = (Y Y^T)^(-1/2) Y. shares: (n, d), as is Z.

    The noise of law 4 is sigma sqrt(d) times orthonormal rows Q, and the orthonormal rows nearest
    to Y are polar(Y). To first order Z = S Q, with S the symmetric part of W Q^T: nothing is left
    of the noise but its directions, *whatever* sigma is, and row i of Z has the cosine
    sqrt((n + 1) / 2d) with W_i. Law 6 does not see this, as it takes rows to be independent.
    """
    n, d = shares.shape
    eigenvalues, vectors = np.linalg.eigh(shares @ shares.T)
    inverse_root = (vectors / np.sqrt(eigenvalues)) @ vectors.T
    residue: Float64 = (np.eye(n) - sigma * math.sqrt(d) * inverse_root) @ shares
    return residue


def polar_filter(shares: Float64, candidates: Float64, *, sigma: float) -> Float64:
    """<Z_i, candidate_i> for every row (n,), with Z by `polar`. shares, candidates: (n, d).

    Its signal-to-noise ratio is sqrt((n + 1) / 2), whatever d and sigma are.
    """
    statistics: Float64 = np.einsum("ij,ij->i", polar(shares, sigma=sigma), candidates)
    return statistics


def auc(positive: Float64, negative: Float64) -> float:
    """The chance that a true suspicion scores above a false one, ties counting half: 0.5 is blind.

    positive, negative: what an attack gave for true and for false suspicions, (m,) and (l,).
    """
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left")
    not_above = np.searchsorted(ordered, positive, side="right")
    return float(np.mean(below + not_above) / (2 * len(ordered)))
