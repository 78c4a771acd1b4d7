"""How the records of a trace belong together: nesting, links, windows, modules, stacks."""
