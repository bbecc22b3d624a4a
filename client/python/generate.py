"""Makes headrace/headrace_pb2.py from proto/headrace.proto.

Runs as a script (`python3 generate.py`) and as the build hook of `pip install`. The compiler is
Debian's protoc (package protobuf-compiler), or that of grpcio-tools where protoc is missing. In a
source archive, which carries the generated files and no .proto, the hook does nothing.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE / "headrace"
PROTO = HERE.parent.parent / "proto" / "headrace.proto"


def compiler() -> list[str]:
    """The command line that protoc's arguments are appended to."""
    protoc = shutil.which("protoc")
    if protoc:
        return [protoc]
    if importlib.util.find_spec("grpc_tools"):
        return [sys.executable, "-m", "grpc_tools.protoc"]
    raise SystemExit("generate.py: no protoc: install the package protobuf-compiler")


def generate() -> None:
    """Writes the module and its type stub, unless they are newer than the contract."""
    outputs = [PACKAGE / "headrace_pb2.py", PACKAGE / "headrace_pb2.pyi"]
    if not PROTO.exists():
        if all(path.exists() for path in outputs):
            return
        raise SystemExit(f"generate.py: {PROTO} is missing")
    newest = max(PROTO.stat().st_mtime, Path(__file__).stat().st_mtime)
    if all(path.exists() and path.stat().st_mtime > newest for path in outputs):
        return
    command = [
        *compiler(),
        f"-I{PROTO.parent}",
        f"--python_out={PACKAGE}",
        f"--pyi_out={PACKAGE}",
        PROTO.name,
    ]
    subprocess.run(command, check=True)


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:
    pass
else:

    class GenerateHook(BuildHookInterface):  # type: ignore[type-arg,misc]
        """Generates before a wheel, an editable install or a source archive is put together."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, object]) -> None:
            generate()


if __name__ == "__main__":
    generate()
