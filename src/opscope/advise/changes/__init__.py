"""The changes that are tried, one object each: a module holds those of one kind, and ``listed.py`` all of them."""
