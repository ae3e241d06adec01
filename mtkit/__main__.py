"""`python -m mtkit` is the command `mtkit`."""

from mtkit.cli.app import main

if __name__ == "__main__":
    main()
