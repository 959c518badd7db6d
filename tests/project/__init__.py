"""Checks of the tree itself."""
