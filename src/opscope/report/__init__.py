"""Results as data (documents, sections), then one renderer per output. No renderer computes a figure."""
