"""Stand-ins for other parties in tests and benchmarks: their servers, and small models."""
