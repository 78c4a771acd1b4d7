"""What Python calls: ``opscope.profile``, ``opscope.bench``, ``opscope.diff``, and the fixture of pytest."""
