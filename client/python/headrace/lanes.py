"""Several connections for one upload."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from headrace import flows
from headrace.errors import HeadraceError
from headrace.flows import Placement
from headrace.uploads import Upload

if TYPE_CHECKING:
    from headrace.client import Client


class Lanes:
    """Further connections that send parts of an upload while the client's own does, too."""

    def __init__(
        self,
        sibling: Callable[[], Client],
        count: int,
        upload: Upload,
        placement: Placement | None,
        timeout: float,
    ) -> None:
        self._sibling = sibling
        self._upload = upload
        self._placement = placement
        self._timeout = timeout
        self._open: list[Client] = []
        self._closing = False
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def __enter__(self) -> Lanes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:  # else the daemon answers all of them
            with self._lock:
                self._closing = True
                for client in self._open:
                    client.close()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        """A lane that fails leaves its part to the others."""
        with contextlib.suppress(HeadraceError), self._sibling() as client:
            with self._lock:
                if self._closing:
                    return
                self._open.append(client)
            flow = flows.weights.put(
                self._upload, self._placement, client.body_max, reconnects=True
            )
            client.drop(client.drive(flow, self._timeout))
