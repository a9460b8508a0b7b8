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
def test_it_is_asked_to_end_even_where_its_last_words_fail(is_gone: bool) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        if is_gone:
            other.kill()
            other.wait()
        with subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, str(other.pid)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as follower:
            try:
                assert follower.stdout is not None
                said = [follower.stdout.readline()]
                other.kill()
                assert follower.wait(60) == -signal.SIGTERM
                said += follower.stdout.readlines()
            finally:
                follower.kill()
                other.kill()
    assert "before" in "".join(said)
