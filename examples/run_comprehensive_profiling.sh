#!/usr/bin/env bash
# The quick and the full sweep over BERT into ./profiling_results, with one summary each.
set -euo pipefail
exec python3 "$(dirname "$0")/profile_bert.py" --preset comprehensive "$@"
