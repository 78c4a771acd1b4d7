"""Small programs that try something on this machine, each in a process of its own, and print what came of it."""
