"""What bounds a step, and what that rests on."""
