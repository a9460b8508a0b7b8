"""Prints how its process is isolated."""

from __future__ import annotations

import sys

from plansmith.system.isolation import isolation_of_process

if __name__ == "__main__":
    sys.stdout.write(f"{isolation_of_process()}\n")
