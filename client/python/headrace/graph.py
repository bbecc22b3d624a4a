"""The graph builder: leaves, and one method per operator.

    g = Graph()
    x = g.input("x", (4, 64))
    w = g.constant(weights)                  # (16, 64)
    y = g.output(g.silu(g.mul_mat(w, x)), "y")   # (4, 16)

Shapes are in numpy's order, the last axis is the one that is dense in memory. Types and shapes of
results are inferred here so that the declaration is right; the daemon infers them again and
believes nothing.
"""

from __future__ import annotations

from headrace.op import Glu, LeafKind, Op, Unary
from headrace.ops.attention import AttentionOps, RopeMode
from headrace.ops.base import Tensor
from headrace.ops.layout import LayoutOps
from headrace.ops.math import MathOps
from headrace.ops.recurrent import RecurrentOps
from headrace.ops.vision import VisionOps

__all__ = ["Glu", "Graph", "LeafKind", "Op", "RopeMode", "Tensor", "Unary"]


class Graph(LayoutOps, MathOps, AttentionOps, VisionOps, RecurrentOps):
    """A graph under construction. Not thread-safe; frozen by its first encode() or submit."""
