"""The engines: one for each family of notations."""
