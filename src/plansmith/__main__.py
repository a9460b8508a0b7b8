"""Entry point of `python -m plansmith`, the same as the `plansmith` command."""

from plansmith.cli import main

main()
