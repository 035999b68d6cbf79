"""`python -m ostraka` is the command `ostraka`."""

from ostraka.cli import main

if __name__ == "__main__":
    main()
