"""What could make a step faster: one function per rule, ranked by the saving that can be defended."""
