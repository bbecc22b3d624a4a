"""ggml's operators as the peer of `./bench ops`: the same lines, the same answers as bench_ops.c.

    ggml_ops_peer.py < lines

runs in an environment that has llama-cpp-python and calls the libggml that lies in it, as llama.cpp
does: a graph on the CPU backend with the threads asked for. BACKEND is `ggml`, or `repack` for weights
in the buffer type that interleaves rows when they are loaded ("no" where a type has no such layout).
Only what is timed is done in C; graphs are made here, call by call.
"""

from __future__ import annotations

import ctypes
import sys
import time
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import llama_cpp

STEPS_MAX = 8192
NODE_BYTES = 1024  # of a graph's memory, for each of its tensors; more than any version needs
TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q8_0": 8, "q4_K": 12, "q5_K": 13,
    "q6_K": 14, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
F32, F16 = TYPES["f32"], TYPES["f16"]


class InitParams(ctypes.Structure):
    """struct ggml_init_params"""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class Library:
    """The functions of libggml that are used, with their types."""

    def __init__(self) -> None:
        folder = Path(llama_cpp.__file__).parent / "lib"
        loaded = [
            ctypes.CDLL(str(folder / f"lib{name}.so"), mode=ctypes.RTLD_GLOBAL)
            for name in ("ggml-base", "ggml-cpu")
        ]

        def take(name: str, result: object, *arguments: object) -> object:
            function = next(getattr(one, name) for one in loaded if hasattr(one, name))
            function.restype, function.argtypes = result, arguments
            return function

        pointer = c_void_p
        self.init = take("ggml_init", pointer, InitParams)
        self.free = take("ggml_free", None, pointer)
        self.new_2d = take("ggml_new_tensor_2d", pointer, pointer, c_int, c_int64, c_int64)
        self.new_3d = take("ggml_new_tensor_3d", pointer, pointer, c_int, *[c_int64] * 3)
        self.permute = take("ggml_permute", pointer, pointer, pointer, *[c_int] * 4)
        self.mul_mat = take("ggml_mul_mat", pointer, *[pointer] * 3)
        self.attend = take("ggml_flash_attn_ext", pointer, *[pointer] * 5, *[c_float] * 3)
        self.new_graph = take("ggml_new_graph_custom", pointer, pointer, c_size_t, c_bool)
        self.expand = take("ggml_build_forward_expand", None, pointer, pointer)
        self.nbytes = take("ggml_nbytes", c_size_t, pointer)
        self.cpu_init = take("ggml_backend_cpu_init", pointer)
        self.cpu_reg = take("ggml_backend_cpu_reg", pointer)
        self.set_threads = take("ggml_backend_cpu_set_n_threads", None, pointer, c_int)
        self.compute = take("ggml_backend_graph_compute", c_int, pointer, pointer)
        self.device = take("ggml_backend_get_device", pointer, pointer)
        self.supports = take("ggml_backend_dev_supports_op", c_bool, pointer, pointer)
        self.address = take("ggml_backend_reg_get_proc_address", pointer, pointer, c_char_p)
        self.plain_kind = take("ggml_backend_cpu_buffer_type", pointer)
        self.kind_name = take("ggml_backend_buft_name", c_char_p, pointer)
        self.kind_new = take("ggml_backend_buft_alloc_buffer", pointer, pointer, c_size_t)
        self.alloc_all = take(
            "ggml_backend_alloc_ctx_tensors_from_buft", pointer, pointer, pointer
        )
        self.buffer_free = take("ggml_backend_buffer_free", None, pointer)
        self.buffer_base = take("ggml_backend_buffer_get_base", pointer, pointer)
        self.view_init = take("ggml_backend_view_init", c_int, pointer)
        self.place = take("ggml_backend_tensor_alloc", c_int, *[pointer] * 3)
        self.set = take("ggml_backend_tensor_set", None, pointer, pointer, c_size_t, c_size_t)


class Bench:
    """One graph at a time, and the memory it stands on."""

    def __init__(self) -> None:
        self.ggml = Library()
        self.backend = self.ggml.cpu_init()
        self.contexts: list[int] = []
        self.buffers: list[int] = []
        self.graph, self.count = 0, 0

    def close(self) -> None:
        for buffer in self.buffers:
            self.ggml.buffer_free(buffer)
        for context in self.contexts:
            self.ggml.free(context)
        self.contexts, self.buffers, self.graph = [], [], 0

    def context(self, tensors: int) -> int:
        size = NODE_BYTES * (tensors + 64)
        made = self.ggml.init(InitParams(size, None, True))
        self.contexts.append(made)
        return int(made)

    def repack_kind(self) -> int | None:
        ggml = self.ggml
        found = ggml.address(ggml.cpu_reg(), b"ggml_backend_dev_get_extra_bufts")
        if not found:
            return None
        kinds = ctypes.CFUNCTYPE(ctypes.POINTER(c_void_p), c_void_p)(found)(
            ggml.device(self.backend)
        )
        for index in range(16):
            if not kinds[index]:
                return None
            if b"REPACK" in ggml.kind_name(kinds[index]).upper():
                return int(kinds[index])
        return None

    def buffer(self, made: int | None) -> int:
        if not made:
            raise MemoryError("ggml has no memory for this")
        self.buffers.append(made)
        return int(made)

    def fill(self, tensor: int, pattern: ctypes.Array[ctypes.c_char]) -> None:
        """`pattern` is as long as the largest tensor is."""
        self.ggml.set(tensor, pattern, 0, self.ggml.nbytes(tensor))

    def start(self, threads: int, nodes: list[int], context: int) -> None:
        """Results of all nodes lie at one place, as ours do."""
        ggml = self.ggml
        ggml.set_threads(self.backend, threads)
        size = max(ggml.nbytes(node) for node in nodes)
        shared = self.buffer(ggml.kind_new(ggml.plain_kind(), size))
        for node in nodes:
            ggml.place(shared, node, ggml.buffer_base(shared))
        self.graph = ggml.new_graph(context, len(nodes) * 2 + 64, False)
        for node in nodes:
            ggml.expand(self.graph, node)
        self.count = len(nodes)

    def mul_mat(
        self, backend: str, name: str, m: str, k: str, n: str, threads: str, mib: str
    ) -> str:
        ggml = self.ggml
        kind = ggml.plain_kind() if backend == "ggml" else self.repack_kind()
        if kind is None:
            return "no"
        self.close()
        probe = ggml.new_2d(self.context(1), TYPES[name], int(k), int(m))
        each = (ggml.nbytes(probe) + 4095) // 4096 * 4096
        count = min(max((int(mib) << 20) // each, 1), STEPS_MAX)
        of_weights = self.context(count)
        weights = [ggml.new_2d(of_weights, TYPES[name], int(k), int(m)) for _ in range(count)]
        self.buffer(ggml.alloc_all(of_weights, kind))
        of_columns = self.context(1)
        columns = ggml.new_2d(of_columns, F32, int(k), int(n))
        self.buffer(ggml.alloc_all(of_columns, ggml.plain_kind()))
        of_nodes = self.context(count * 3 + 64)
        nodes = [ggml.mul_mat(of_nodes, weight, columns) for weight in weights]
        if backend == "repack" and not ggml.supports(ggml.device(self.backend), nodes[0]):
            return "no"
        pattern = ctypes.create_string_buffer(b"\x3b\x29\x31\x1a" * (ggml.nbytes(probe) // 4 + 1))
        for weight in weights:
            self.fill(weight, pattern)
        self.fill(columns, float_pattern(int(k) * int(n)))
        self.start(int(threads), nodes, of_nodes)
        return f"ok {self.count}"

    def attend(
        self, threads: str, size: str, heads: str, key_heads: str, keys: str, queries: str, copies: str
    ) -> str:
        ggml = self.ggml
        self.close()
        data = self.context(2 * int(copies) + 2)
        # a cache holds all heads of a key side by side; attention sees it permuted
        caches = [
            ggml.new_3d(data, F16, int(size), int(key_heads), int(keys))
            for _ in range(2 * int(copies))
        ]
        query = ggml.new_3d(data, F32, int(size), int(queries), int(heads))
        mask = ggml.new_2d(data, F16, int(keys), int(queries))
        self.buffer(ggml.alloc_all(data, ggml.plain_kind()))
        pattern = ctypes.create_string_buffer(
            b"\x3b\x29\x31\x1a" * (ggml.nbytes(caches[0]) // 4 + 1)
        )
        for cache in caches:
            self.fill(cache, pattern)
        self.fill(query, float_pattern(int(size) * int(queries) * int(heads)))
        self.fill(mask, causal_mask(int(keys), int(queries)))
        context = self.context(int(copies) * 8 + 64)
        seen = [ggml.permute(context, cache, 0, 2, 1, 3) for cache in caches]
        scale = int(size) ** -0.5
        nodes = [
            ggml.attend(context, query, seen[2 * i], seen[2 * i + 1], mask, scale, 0.0, 0.0)
            for i in range(int(copies))
        ]
        for view in seen:
            ggml.view_init(view)  # the memory of what it is a view of
        self.start(int(threads), nodes, context)
        return f"ok {self.count}"

    def run(self, passes: str) -> str:
        start = time.perf_counter_ns()
        for _ in range(int(passes)):
            if self.ggml.compute(self.backend, self.graph) != 0:
                raise SystemExit("ggml cannot compute this")
        return f"{(time.perf_counter_ns() - start) / int(passes) / self.count:.1f}"


def float_pattern(count: int) -> ctypes.Array[c_float]:
    values = [((i * 2654435761) % 65536) / 32768.0 - 1.0 for i in range(min(count, 65536))]
    return (c_float * count)(*(values * (count // len(values) + 1))[:count])


def causal_mask(keys: int, queries: int) -> ctypes.Array[ctypes.c_char]:
    rows = []
    for query in range(queries):
        seen = keys - queries + query + 1
        rows.append(b"\x00\x00" * seen + b"\x00\xfc" * (keys - seen))
    return ctypes.create_string_buffer(b"".join(rows))


def main() -> None:
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    bench = Bench()
    for line in sys.stdin:
        name, *arguments = line.split()
        print(getattr(bench, name)(*arguments), flush=True)


if __name__ == "__main__":
    main()
