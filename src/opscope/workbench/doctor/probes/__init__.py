"""Small programs that each try something on this machine, in a separate process, and print the result as JSON."""
