"""Lets `python -m thrice` do what `thrice` does."""

from thrice.cli import main

if __name__ == "__main__":
    main()
