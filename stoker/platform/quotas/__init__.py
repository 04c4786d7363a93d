"""What one account may have: a table of limits, and the check that stands before each addition."""
