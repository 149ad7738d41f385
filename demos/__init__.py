"""Runnable examples and the web app."""
