"""Idioms by topic, a file for each."""
