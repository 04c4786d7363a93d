"""Quotas of accounts: a table of limits, and the check before each addition."""
