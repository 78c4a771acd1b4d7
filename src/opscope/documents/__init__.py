"""What opscope writes and prints as data: one module per document, types only. Builders are in `opscope.report`.

Times are integer nanoseconds (means and percentiles may have fractions). What is unknown is null, with a reason where
there is one. Fields may be added within a version of a schema, with a default, so that every earlier document of the
version can be read; `opscope.documents.trace` lists what was added when.
"""
