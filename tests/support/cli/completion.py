"""What the real bash offers for words of a command line."""

from __future__ import annotations

import shlex
import subprocess
from functools import cache
from pathlib import Path

from .command import COMMAND, CommandLine, environment


@cache
def bash_script() -> str:
    """What plansmith prints for a start-up file of bash."""
    answer = CommandLine(Path.cwd())(_PLANSMITH_COMPLETE="bash_source")
    assert answer.status == 0, answer
    return answer.stdout


def bash(run: CommandLine, words: tuple[str, ...]) -> list[str]:
    """What the real bash offers after the script that plansmith prints was read."""
    script = f"""
        env() {{ command env "${{@:1:$#-1}}" {shlex.join(COMMAND)}; }}
        compopt() {{ [ "$2" = dirnames ] && echo "<dir>" || echo "<file>"; }}
        eval {shlex.quote(bash_script())}
        complete -p plansmith >&2
        COMP_WORDS=(plansmith {shlex.join(words)}) COMP_CWORD={len(words)} COMPREPLY=()
        _plansmith_completion plansmith
        for word in "${{COMPREPLY[@]}}"; do echo "$word"; done
    """
    done = subprocess.run(
        ["bash", "-c", script], cwd=run.folder, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stderr == "complete -o nosort -F _plansmith_completion plansmith\n"
    return done.stdout.splitlines()
