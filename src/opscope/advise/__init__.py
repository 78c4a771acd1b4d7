"""Tries known changes on the user's own step, times them, proves them, and only then recommends them."""
