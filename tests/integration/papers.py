"""Certificates for tests of TLS, made by openssl: an authority, the daemon's, two clients', a stranger's."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


def openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@dataclass(frozen=True)
class Papers:
    """An authority with the daemon's certificate and two clients', and a stranger's."""

    folder: Path

    def file(self, name: str) -> Path:
        return self.folder / name


def certificate(folder: Path, name: str, common_name: str, issuer: str, *options: str) -> None:
    key, request = folder / f"{name}.key", folder / f"{name}.csr"
    extension = folder / f"{name}.ext"
    extension.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
            "-out", request, "-subj", f"/CN={common_name}")  # fmt: skip
    openssl("x509", "-req", "-in", request, "-CA", folder / f"{issuer}.pem", "-CAkey",
            folder / f"{issuer}.key", "-CAcreateserial", "-out", folder / f"{name}.pem",
            "-extfile", extension, *(options or ("-days", "2")))  # fmt: skip


def make_papers(folder: Path) -> Papers:
    for authority in ("ours", "theirs"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-keyout", folder / f"{authority}.key", "-out", folder / f"{authority}.pem",
                "-subj", f"/CN={authority}", "-days", "2")  # fmt: skip
    certificate(folder, "daemon", "localhost", "ours")
    certificate(folder, "known", "known client", "ours")
    certificate(folder, "unknown", "unknown client", "ours")
    certificate(folder, "stranger", "known client", "theirs")
    certificate(folder, "expired", "known client", "ours", "-days", "-1")
    return Papers(folder)
