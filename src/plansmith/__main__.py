"""`python -m plansmith` is the `plansmith` command."""

from plansmith.cli import main

main()
