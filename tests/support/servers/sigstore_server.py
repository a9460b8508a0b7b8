"""A private Sigstore on 127.0.0.1: certificate authority and transparency log (make .venv/.sigstore)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKAGES = Path(sys.prefix) / "sigstore" / "node_modules"
_PROGRAM = Path(__file__).with_suffix(".cjs")
_KEY = "of an issuer whose signatures this Sigstore does not check" * 2


@dataclass(frozen=True)
class SigstoreServer:
    """Where it answers, and what a client has to trust (a ClientTrustConfig of Sigstore's)."""

    url: str
    trust: dict[str, Any]

    def token(self, identity: str, issuer: str) -> str:
        """A token of an OpenID Connect issuer, as a CI job gets it."""
        import jwt

        now = int(time.time())
        claims = {"iss": issuer, "sub": identity, "aud": "sigstore", "iat": now, "exp": now + 600}
        return jwt.encode(claims, _KEY)


@contextmanager
def running() -> Iterator[SigstoreServer]:
    """The server, for the length of a block."""
    assert _PACKAGES.is_dir(), "there is no Sigstore: make .venv/.sigstore"
    with subprocess.Popen(["node", _PROGRAM, _PACKAGES], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            yield SigstoreServer(**json.loads(program.stdout.readline()))
        finally:
            program.kill()
