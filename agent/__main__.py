"""`python -m agent` is the command line."""

from agent.cli import main

main()
