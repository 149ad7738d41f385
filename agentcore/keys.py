"""Random keys: every random choice is a function of a key, so timing and batching cannot change a result."""

from __future__ import annotations

import hashlib
import random


def derive_key(*parts: object) -> int:
    """A 63-bit key from the given parts, e.g. ``derive_key(seed, iteration, task_id, rollout)``.

    Equal parts give equal keys on every machine and Python version; any differing part gives an unrelated
    key. Parts are told apart by type and position (``1`` and ``"1"`` differ).
    """
    digest = hashlib.blake2b(repr(tuple(parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def rng(*parts: object) -> random.Random:
    """A private generator seeded by ``derive_key(*parts)``."""
    return random.Random(derive_key(*parts))
