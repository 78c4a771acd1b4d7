"""Whether everything works here: `ask` tries it, `diagnose` says what follows."""
