"""The operations, without I/O: each is a generator that yields requests and is sent replies.

The blocking and the asyncio client drive the same generators. A failed request is thrown in at the
yield, so that an operation can answer it (a graph that was evicted is submitted again, once).
"""

from headrace.flows import graphs, session, states, weights
from headrace.flows.request import (
    Flow,
    Inputs,
    Observe,
    OnPart,
    OnProgress,
    OnTap,
    Placement,
    Request,
    Taps,
    is_end_of_daemon,
)

__all__ = [
    "Flow",
    "Inputs",
    "Observe",
    "OnPart",
    "OnProgress",
    "OnTap",
    "Placement",
    "Request",
    "Taps",
    "graphs",
    "is_end_of_daemon",
    "session",
    "states",
    "weights",
]
