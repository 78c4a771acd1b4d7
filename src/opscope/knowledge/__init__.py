"""Facts: what operators are, which native functions implement them. No trace is read and PyTorch is not needed here."""
