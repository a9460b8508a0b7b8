"""A process that ends with another one does so whatever comes of what it wanted to do before."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

FOLLOWER = """
import sys, time
from plansmith.system.process import end_with

def before():
    print("before", flush=True)
    raise SystemError("what it wanted to say was not heard")

end_with(int(sys.argv[1]), before=before, grace_seconds=60)
print("follows", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("is_gone", [False, True], ids=["it ends later", "it has ended before"])
def test_end_requested_after_failed_words(is_gone: bool) -> None:
    """A process is asked to end even where its last words fail."""
    with subprocess.Popen(["sleep", "600"]) as process:
        if is_gone:
            process.kill()
            process.wait()
        with subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, str(process.pid)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as follower:
            try:
                assert follower.stdout is not None
                lines = [follower.stdout.readline()]
                process.kill()
                assert follower.wait(60) == -signal.SIGTERM
                lines += follower.stdout.readlines()
            finally:
                follower.kill()
                process.kill()
    assert "before" in "".join(lines)
