"""``python -m robustly.cli``: the same as the installed command."""

from robustly.cli import main

if __name__ == "__main__":
    main()
