"""Authentication: keys, limits and budgets."""
