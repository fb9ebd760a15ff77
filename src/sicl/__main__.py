"""`python -m sicl` is the command `sicl`."""

from sicl.cli import main

if __name__ == "__main__":
    main()
