"""From a name or a call to what is known of it, and to its source."""
