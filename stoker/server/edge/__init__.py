"""What a connection may take before there is a request, and while one is under way."""
