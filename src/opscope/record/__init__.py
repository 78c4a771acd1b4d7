"""What a measurement leaves behind beside its raw files: the nouns of a capture and of a sweep.

Collectors write them, everything else only reads them; none of it needs PyTorch. They are stored as JSON with the field
names of their types.
"""
