"""Scans: records in the order of their creation, read page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from ..storage.protocol import Page

T = TypeVar("T")

PAGE = 200

FetchPage = Callable[[int, int | None], Awaitable[Page[T]]]


class Scan(Generic[T]):
    """Records of one kind: ``async for item in scan``, or ``list``, ``first`` and ``page``.

    Each page is read when it is needed; a scan may be iterated more than once and then reads again.
    """

    def __init__(self, fetch: FetchPage[T]) -> None:
        self._fetch = fetch

    async def __aiter__(self) -> AsyncIterator[T]:
        cursor: int | None = None
        while True:
            page = await self._fetch(PAGE, cursor)
            for item in page.items:
                yield item
            if page.next is None:
                return
            cursor = page.next

    async def list(self, limit: int | None = None) -> list[T]:
        """All items, or the first ``limit``."""
        items: list[T] = []
        cursor: int | None = None
        while limit is None or len(items) < limit:
            page = await self._fetch(PAGE if limit is None else min(PAGE, limit - len(items)), cursor)
            items.extend(page.items)
            if page.next is None:
                break
            cursor = page.next
        return items

    async def first(self) -> T | None:
        """The first item, or ``None``."""
        page = await self._fetch(1, None)
        return page.items[0] if page.items else None

    async def page(self, limit: int, cursor: int | None = None) -> Page[T]:
        """Up to ``limit`` items from ``cursor`` on, and the cursor of the next page."""
        return await self._fetch(limit, cursor)
