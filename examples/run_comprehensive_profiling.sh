#!/usr/bin/env bash
# The quick and the full sweep over BERT into ./profiling_results/quick and ./profiling_results/full, with a summary each.
# What follows goes to opscope profile: --use-real-bert, --device cpu, or --overwrite to replace an earlier run.
set -euo pipefail
exec python3 "$(dirname "$0")/profile_bert.py" --preset comprehensive --output-dir profiling_results "$@"
