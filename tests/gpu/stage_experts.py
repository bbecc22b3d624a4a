"""stage_experts.py [--quick]: a mixture whose weights lie in host memory, computed on the GPU.

Every number of copies, memory for few experts and for all of them: the same bits as with the weights
on the GPU, and near what the processor's own arithmetic gives. A bad id fails its run and no other.
Where the device copies experts, what was copied is what was missing.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from stage import HOST, Array, Failure, distance, device, end, same_bits, serving

import headrace
from headrace.errors import OutOfRange

USED, RUNS = 2, 12
NEAR = 1e-9


def mixture(experts: int, rows: int, width: int) -> headrace.Graph:
    """Two layers with a norm between them; both pick by the same ids."""
    g = headrace.Graph()
    ids = g.input("ids", (1, USED), "i32")
    x = g.input("x", (1, 1, width))
    first = g.mul_mat_id(g.weight("a_exps", (experts, width, width)), x, ids)
    g.output(g.mul_mat_id(g.weight("b_exps", (experts, rows, width)), g.rms_norm(first, 1e-5), ids), "y")
    return g


def expected(weights: dict[str, Array], x: Array, ids: Array) -> Array:
    found = []
    for i in ids.ravel():
        h = weights["a_exps"][i].astype(np.float64) @ x.ravel()
        h /= np.sqrt((h**2).mean() + 1e-5)
        found.append(weights["b_exps"][i].astype(np.float64) @ h)
    return np.stack(found)


def answers(handle: Any, steps: list[tuple[Array, Array]]) -> list[Array]:
    """In flight together: the runs overlap."""
    operations = [handle.run_async({"x": x, "ids": ids}) for x, ids in steps]
    return [np.asarray(operation.result()["y"]).reshape(USED, -1) for operation in operations]


def bad_id(handle: Any, x: Array, experts: int) -> None:
    try:
        handle.run({"x": x, "ids": np.array([[0, experts]], np.int32)})
    except OutOfRange:
        return
    raise Failure("an expert that there is none of was no error")


def work() -> str:
    quick = "--quick" in sys.argv[1:]
    experts, rows, width = (8, 32, 64) if quick else (32, 512, 1024)
    copies = (1, 8) if quick else range(1, 9)
    rng = np.random.default_rng(38)
    weights = {
        "a_exps": rng.standard_normal((experts, width, width), np.float32),
        "b_exps": rng.standard_normal((experts, rows, width), np.float32),
    }
    steps = [
        (
            rng.standard_normal((1, 1, width), np.float32),
            rng.choice(experts, (1, USED), replace=False).astype(np.int32),
        )
        for _ in range(RUNS)
    ]
    wanted = [expected(weights, x, ids) for x, ids in steps]
    few = 4 * 4 * width * width
    plain: list[Array] = []
    told = ""
    for given in (0, few):
        gpu = device("gpu0", backend="cuda", gpu=0, expert_bytes=given)
        with serving((gpu, HOST)) as (_, client):
            graph = mixture(experts, rows, width)
            if not plain:
                near = client.put("near", weights, {"*": "gpu0"})
                handle = client.submit(graph, weights=[near], pins={"*": "gpu0"})
                plain = answers(handle, steps)
                far = max(distance(a, b) for a, b in zip(plain, wanted, strict=True))
                if far > NEAR:
                    raise Failure(f"the GPU is {far:.3g} away from plain arithmetic")
            held = client.put("far", weights, {"*": "host"})
            for n in copies:
                handle = client.submit(graph, weights=[held], pins={"*": "gpu0"}, n_copies=n)
                for _ in range(2):
                    same_bits(f"{n} copies, {given} bytes", answers(handle, steps), plain)
                bad_id(handle, steps[0][0], experts)
                same_bits("after a bad id", answers(handle, steps), plain)
            stats = client.stats()
            hits, misses = (
                int(stats.value("experts_total", f'result="{one}"')) for one in ("hit", "miss")
            )
            if not misses:
                raise Failure("no expert was copied alone: whole weights were")
            told += f"; {hits} hits, {misses} misses with " + (f"{given} bytes" if given else "all kept")
    return f"{len(plain)} results each, all of the same bits; {far:.2g} from plain arithmetic{told}"


if __name__ == "__main__":
    end(work)
