"""What every room uses: errors, units, text, files, threads, and the one place that starts opscope's own processes."""
