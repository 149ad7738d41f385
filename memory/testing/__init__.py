"""A conformance kit for LangGraph stores: subclass :class:`StoreContract` and say how a store is made.

    class TestMyStore(StoreContract):
        def make_store(self, *, index=None, ttl=None):
            return MyStore(index=index, ttl=ttl)

pytest collects the methods; ``report(TestMyStore)`` runs them without pytest. What a store must do:

 1. ``get`` returns what was put; values are copied both ways; results come in the order of the operations.
 2. Reads of a batch see the state before its puts; the last put of a key wins; equal texts in a batch are fine.
 3. An update keeps ``created_at`` and moves ``updated_at`` forward; both are aware times.
 4. A namespace prefix matches whole labels, literally; malformed namespaces are refused on every path.
 5. Filters: all operators, on missing fields and other types too; nested dicts and lists compare as values.
 6. Pages partition the results, however far one pages.
 7. Search: nearest first, a higher score is better, ``fields`` and ``index`` decide what is embedded, an item appears
    once with its best vector, and no vector outlives the text it was made from.
 8. Queries are embedded as queries.
 9. Namespaces are listed while they hold items, by prefix, suffix, wildcard and depth.
10. Time to live: expiry, refresh on read, sweeping, ``omit_expired``.
11. Threads and asyncio tasks may use one store together; what was put is there after reopening.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from memory.testing.base import NS, WORDS, StoreKit, WordEmbedder, by_text
from memory.testing.items import BatchContract, FilterContract
from memory.testing.lifetime import ConcurrencyContract, TtlContract
from memory.testing.search import SearchContract

__all__ = [
    "NS",
    "WORDS",
    "BatchContract",
    "ConcurrencyContract",
    "FilterContract",
    "SearchContract",
    "StoreContract",
    "StoreKit",
    "TtlContract",
    "WordEmbedder",
    "by_text",
    "report",
]


class StoreContract(BatchContract, FilterContract, SearchContract, TtlContract, ConcurrencyContract):
    """The whole kit."""


def report(contract: type[StoreKit]) -> dict[str, str | None]:
    """Run the kit without pytest: what failed and how, None for what passed, by name of the check."""
    results: dict[str, str | None] = {}
    for name in sorted(name for name in dir(contract) if name.startswith("test_")):
        try:
            getattr(contract(), name)()
            results[name] = None
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)
            lines = [frame.line for frame in where if Path(frame.filename).parent == Path(__file__).parent]
            text = str(error).splitlines()[0] if str(error) else lines[-1]
            results[name] = f"{type(error).__name__}: {text}"[:200]
    return results
