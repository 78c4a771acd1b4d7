"""What Python calls: ``profile``, ``bench``, ``diff`` and ``whatif`` of ``opscope``, and the fixture of pytest."""
