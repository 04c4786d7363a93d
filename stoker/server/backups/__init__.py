"""Backups of a data folder in one file, made while the server runs."""
