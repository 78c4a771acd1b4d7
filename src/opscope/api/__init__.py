"""What Python calls: ``opscope.profile``, ``opscope.bench``, ``opscope.diff``, ``opscope.whatif``, and the fixture of pytest."""
