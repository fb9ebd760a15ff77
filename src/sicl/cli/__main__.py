"""`python -m sicl.cli`."""

from sicl.cli import main

main()
