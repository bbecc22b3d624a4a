"""Headrace: tensor graphs run by headraced.

    import headrace
    g = headrace.Graph()
    y = g.output(g.relu(g.input("x", (4,))), "y")
    with headrace.connect("unix:/run/headrace/headrace.sock") as client:
        print(client.submit(g).run({"x": [-1, 0, 1, 2]})["y"])

connect() blocks; headrace.aio.connect() is for asyncio. headrace.models builds language models.
"""

from headrace import errors
from headrace.client import Client, connect
from headrace.context import tracing
from headrace.errors import HeadraceError
from headrace.graph import Glu, Graph, Op, RopeMode, Tensor, Unary
from headrace.handles import Device, PlanSummary, RunResult, Stats, WeightSet
from headrace.held import GraphHandle, Reservation, State
from headrace.operation import Operation
from headrace.sequences import Step
from headrace.types import TensorInfo, Type

__version__ = "0.1.0"

__all__ = [
    "Client", "Device", "Glu", "Graph", "GraphHandle", "HeadraceError", "Op", "Operation",
    "PlanSummary", "Reservation", "RopeMode", "RunResult", "State", "Stats", "Step", "Tensor",
    "TensorInfo", "Type", "Unary", "WeightSet", "connect", "errors", "tracing",
]  # fmt: skip
