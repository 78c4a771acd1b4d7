"""A trace: its tables, their columns, and the types of these."""
