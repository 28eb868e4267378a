"""Generators of the reference pages, one module for each. ``docs.generate`` writes what they give."""
