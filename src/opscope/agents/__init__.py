"""For language models: a skill that explains the command line, and a server that offers some commands as tools."""
