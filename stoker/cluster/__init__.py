"""Runs a whole fleet on one machine for the duration of one command: PostgreSQL, node hosts and
gateways.
"""
