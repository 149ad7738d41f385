"""One FAISS index as the store uses it: append-only slots, exact selection, higher scores are better.

Vectors are never removed. The store knows which slots are dead and leaves them out of a search, and a compaction copies
the live ones into a new index; so one code path serves Flat, SQ8 and HNSW, and an old state can still be searched.
Not thread-safe: adding while searching crashes the process, so the store holds a reader-writer lock.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from memory.embedding import Vectors
from memory.errors import BadValueError, StoreConfigError

faiss: Any = importlib.import_module("faiss")
"""Its stubs lack what is used here (selectors, callbacks, raw views)."""
Metric = Literal["cosine", "dot", "l2"]
Kind = Literal["flat", "sq8", "hnsw"]
METRICS: tuple[Metric, ...] = ("cosine", "dot", "l2")
KINDS: tuple[Kind, ...] = ("flat", "sq8", "hnsw")
GATHER_SHARE = 0.05
"""Below this share of all slots, scoring the selected vectors one by one beats scanning the index."""
HNSW_SHARE = 0.3
"""Below this share, HNSW reaches too few of the selected vectors and an exact scan takes its place."""
FEW = 1024
"""Up to here scoring every vector is as fast as FAISS, and exact for HNSW too."""
MOST_TIES = 4096
"""With more equal scores than this around the last place, every selected vector is scored instead."""
TRAIN_ROWS = 50_000
"""Sample from which SQ8 learns the range of each dimension."""
FEW_ROWS = 10_000
"""A smaller sample is given a margin that covers whatever may follow."""


def prepare(vectors: Vectors, metric: Metric) -> Vectors:
    """float32 ``(n, d)``, scaled to unit length for cosine; a zero vector stays zero (cosine 0 with everything)."""
    if metric != "cosine":
        return np.ascontiguousarray(vectors, np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.where(norms == 0, 1, norms), np.float32)


def similarity(query: Vectors, vectors: Vectors, metric: Metric) -> Vectors:
    """Scores ``(n,)`` of prepared ``vectors`` (n, d) for one prepared ``query`` (d,): cosine, dot product, or minus
    the Euclidean distance."""
    if metric == "l2":
        return cast(Vectors, -np.linalg.norm(vectors - query, axis=1))
    return cast(Vectors, vectors @ query)


class VectorIndex:
    """Vectors in slots 0, 1, 2, … of one FAISS index."""

    def __init__(self, dims: int, metric: Metric, kind: Kind, core: Any = None) -> None:
        self.dims, self.metric, self.kind = dims, metric, kind
        self._core = core if core is not None else _empty_core(dims, metric, kind)

    def __len__(self) -> int:
        return int(self._core.ntotal)

    @property
    def exact(self) -> bool:
        """Whether :meth:`vectors` gives the stored floats back (SQ8 gives a rounding of them)."""
        return self.kind != "sq8"

    @property
    def bytes_per_vector(self) -> int:
        """Bytes that one vector takes (for HNSW with its links: 32 neighbours, twice that on the ground layer)."""
        return self.dims if self.kind == "sq8" else 4 * self.dims + (4 * 2 * 32 if self.kind == "hnsw" else 0)

    def add(self, vectors: Vectors) -> None:
        """Append prepared vectors; the first lands in slot ``len(self)``."""
        if vectors.ndim != 2 or vectors.shape[1] != self.dims:
            raise BadValueError(f"The index holds {self.dims}-dimensional vectors, got shape {vectors.shape}.")
        if not len(vectors):
            return
        self.train(vectors)
        self._core.add(np.ascontiguousarray(vectors, np.float32))

    def train(self, sample: Vectors) -> None:
        """Learn the range of each dimension from a sample, before the first addition (SQ8; the others need none)."""
        if self._core.is_trained:
            return
        sample = sample[:: max(1, len(sample) // TRAIN_ROWS)]
        if len(sample) < FEW_ROWS:
            # A few vectors say little about the range of the next ones, and what lies outside is cut off.
            widest = 1.0 if self.metric == "cosine" else 2 * float(np.abs(sample).max())
            edge = np.full((1, self.dims), widest, np.float32)
            sample = np.concatenate([sample, edge, -edge])
        self._core.train(np.ascontiguousarray(sample, np.float32))

    def holds(self, slots: NDArray[np.int64], vectors: Vectors) -> bool:
        """Whether these slots hold these prepared vectors, to the bit (SQ8: their codes)."""
        if self.kind == "sq8":
            return bool(np.array_equal(self._codes()[slots], self._core.sa_encode(np.ascontiguousarray(vectors))))
        return bool(np.array_equal(self.vectors(slots), vectors))

    def _codes(self) -> NDArray[np.uint8]:
        """(len(self), code size) view of FAISS's memory; valid until the next addition."""
        size, count = self._core.code_size, len(self)
        return cast("NDArray[np.uint8]", faiss.rev_swig_ptr(self._core.codes.data(), count * size).reshape(count, size))

    def vectors(self, slots: NDArray[np.int64]) -> Vectors:
        """float32 ``(len(slots), dims)``: the vectors as the index holds them."""
        count = len(self)
        if not len(slots) or not count:
            return np.zeros((0, self.dims), np.float32)
        if self.kind == "sq8":
            return cast(Vectors, self._core.sa_decode(np.ascontiguousarray(self._codes()[slots])))
        flat = faiss.downcast_index(self._core.storage) if self.kind == "hnsw" else self._core
        return cast(Vectors, faiss.rev_swig_ptr(flat.get_xb(), count * self.dims).reshape(count, self.dims)[slots])

    def search(self, query: Vectors, k: int, selected: NDArray[np.bool_] | None) -> tuple[Vectors, NDArray[np.int64]]:
        """The ``k`` best slots for one prepared query (d,), best first: scores and slots, both ``(<= k,)``.

        ``selected`` (len(self),) restricts the search before it, never after it; None selects every slot. Of equal
        scores the later slot comes first, so a larger ``k`` only adds at the end (HNSW, being approximate, may differ).
        """
        count = len(self)
        chosen = count if selected is None else int(selected.sum())
        k = min(k, chosen)
        if k <= 0:
            return np.zeros(0, np.float32), np.zeros(0, np.int64)
        starved = self.kind == "hnsw" and (chosen < HNSW_SHARE * count or 2 * k > chosen)
        if starved or chosen <= FEW or (selected is not None and chosen <= GATHER_SHARE * count):
            return self.score_slots(query, k, np.arange(count) if selected is None else np.flatnonzero(selected))
        ask = k
        while True:
            # One more than asked for shows whether the last place is shared: FAISS breaks ties in no fixed order.
            ask = min(ask + 1, chosen)
            scores, slots = self._core.search(query.reshape(1, -1), ask, params=self._parameters(ask, selected))
            found = slots[0] >= 0
            best, slots = scores[0][found], slots[0][found]
            settled = ask == chosen or (len(best) > k and best[k] != best[k - 1]) or self.kind == "hnsw"
            if settled and len(best) >= k:
                if self.metric == "l2":
                    best = -np.sqrt(np.maximum(best, 0))
                order = np.lexsort((-slots, -best))[:k]
                return best[order], slots[order]
            ask *= 4
            if ask > MOST_TIES or len(best) < k:
                return self.score_slots(query, k, np.arange(count) if selected is None else np.flatnonzero(selected))

    def score_slots(self, query: Vectors, k: int, slots: NDArray[np.int64]) -> tuple[Vectors, NDArray[np.int64]]:
        """The ``k`` best of these slots, by scoring each of them; of equal ones the later slot comes first."""
        scores = np.empty(len(slots), np.float32)
        for start in range(0, len(slots), 65_536):
            part = slots[start : start + 65_536]
            scores[start : start + len(part)] = similarity(query, self.vectors(part), self.metric)
        best = np.arange(len(slots))
        if k < len(slots):
            best = np.flatnonzero(scores >= np.partition(scores, len(slots) - k)[len(slots) - k])
        best = best[np.lexsort((-slots[best], -scores[best]))][:k]
        return scores[best], slots[best]

    def _parameters(self, k: int, selected: NDArray[np.bool_] | None) -> Any:
        selector = None
        if selected is not None:
            selector = faiss.IDSelectorBitmap(np.packbits(selected, bitorder="little"))
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(sel=selector, efSearch=max(64, 2 * k))
        return None if selector is None else faiss.SearchParameters(sel=selector)

    def rebuilt(
        self, keep: NDArray[np.int64], kind: Kind, load: Callable[[NDArray[np.int64]], Vectors] | None = None
    ) -> VectorIndex:
        """A new index of the slots ``keep`` in that order. ``load`` gives the true vectors of slots where this index
        holds only rounded ones; SQ8 to SQ8 copies codes and needs none."""
        new = VectorIndex(self.dims, self.metric, kind)
        if kind == self.kind == "sq8" and len(keep):
            new._core = _without_vectors(self._core)
            for start in range(0, len(keep), 65_536):
                new._core.add_sa_codes(np.ascontiguousarray(self._codes()[keep[start : start + 65_536]]))
            return new
        source = load or self.vectors
        if kind == "sq8" and len(keep):
            new.train(source(keep[:: max(1, len(keep) // TRAIN_ROWS)]))
        for start in range(0, len(keep), 65_536):
            new.add(source(keep[start : start + 65_536]))
        return new

    def write(self, write: Callable[[bytes], object]) -> None:
        """Write the index in FAISS's own format through ``write``."""
        faiss.write_index(self._core, faiss.PyCallbackIOWriter(write))

    @classmethod
    def read(cls, read: Callable[[int], bytes], dims: int, metric: Metric, kind: Kind) -> VectorIndex:
        """Read what :meth:`write` wrote. The caller has checked the bytes; an index of another shape is refused."""
        core = faiss.read_index(faiss.PyCallbackIOReader(read))
        fits = type(core) is type(_empty_core(dims, metric, kind)) and core.d == dims
        if not fits or core.metric_type != _faiss_metric(metric):
            raise BadValueError(f"The file holds a {type(core).__name__} of {core.d} dimensions, not {kind} of {dims}.")
        return cls(dims, metric, kind, core)


def check_kind(kind: str) -> None:
    """Raise :class:`StoreConfigError` for an index kind that does not exist."""
    if kind not in (*KINDS, "auto"):
        raise StoreConfigError(f"Unknown index kind {kind!r}. Use 'auto', {', '.join(map(repr, KINDS))}.")


def check_metric(metric: str) -> None:
    """Raise :class:`StoreConfigError` for a metric that does not exist."""
    if metric not in METRICS:
        raise StoreConfigError(f"Unknown metric {metric!r}. Use one of {', '.join(map(repr, METRICS))}.")


def _faiss_metric(metric: Metric) -> int:
    return int(faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT)


def _empty_core(dims: int, metric: Metric, kind: Kind) -> Any:
    if kind == "flat":
        return faiss.IndexFlatL2(dims) if metric == "l2" else faiss.IndexFlatIP(dims)
    if kind == "hnsw":
        return faiss.IndexHNSWFlat(dims, 32, _faiss_metric(metric))
    core = faiss.IndexScalarQuantizer(dims, faiss.ScalarQuantizer.QT_8bit, _faiss_metric(metric))
    # Later vectors may lie a little outside the range of the sample.
    core.sq.rangestat_arg = 0.1
    return core


def _without_vectors(core: Any) -> Any:
    empty = faiss.IndexScalarQuantizer(core.d, faiss.ScalarQuantizer.QT_8bit, core.metric_type)
    empty.sq.trained = core.sq.trained
    empty.is_trained = True
    return empty
