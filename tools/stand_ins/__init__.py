"""What stands in for others where tests and benchmarks run: their servers, and small models."""
