"""A PKCS #11 token: SoftHSM's, in a folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
PIN = "2718281828"
_LABEL, _KEY = "build", "release"


def make_token(folder: Path, private_key: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a token that holds a private key, and have this process and its children use it; return the key's URI."""
    (folder / "tokens").mkdir()
    (folder / "softhsm.conf").write_text(f"directories.tokendir = {folder / 'tokens'}\nlog.level = ERROR\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(folder / "softhsm.conf"))
    _run("--init-token", "--free", "--label", _LABEL, "--so-pin", PIN, "--pin", PIN)
    _run("--import", str(private_key), "--token", _LABEL, "--label", _KEY, "--id", "01", "--pin", PIN)
    return f"pkcs11:token={_LABEL};object={_KEY}?pin-value={PIN}&module-path={MODULE}"


def _run(*arguments: str) -> None:
    command = ["softhsm2-util", *arguments]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
