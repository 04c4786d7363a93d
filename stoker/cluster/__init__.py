"""A whole fleet on one machine, as long as one command runs: PostgreSQL, node hosts, gateways."""
