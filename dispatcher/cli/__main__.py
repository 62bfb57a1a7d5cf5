"""`python -m dispatcher.cli`, where the script is not on the path."""

from dispatcher.cli import main

main()
