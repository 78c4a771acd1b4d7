"""One module per group of naming schemes; each function understands one family of names, or returns None."""
