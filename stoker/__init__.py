"""Stoker keeps a team's own machine-learning models hot."""

__version__ = "0.1.0"
