"""Count the tokens of what --brief prints, by opscope's own estimate and by two published vocabularies.

    python benchmarks/tokens.py OUTPUT.json CL100K_BASE.tiktoken ANTHROPIC_TOKENIZER.json

Needs tiktoken and tokenizers, and the two vocabularies as files: OpenAI's cl100k_base, and the one that Anthropic
published with its first SDKs.
"""

import argparse
import base64
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from opscope.base.text import count_tokens  # noqa: E402

TRACES = "tests/data/traces"
COMMANDS = (
    *(f"analyze --brief {TRACES}/{name}.json.gz" for name in (
        "gpt2_train_amp_stacks", "resnet50_train_fp32", "bert_fp32_eager_bs8_seq128", "bert4_bf16_compiled",
        "cudagraph_replay",
    )),
    *(f"{words} {TRACES}/gpt2_train_amp_stacks.json.gz --brief" for words in (
        "limits", "analyze --by kernel", "analyze --by operator", "analyze --stats all", "explain --in",
    )),
    "diff tests/data/changes/before tests/data/changes/tf32 --brief", "gpus --brief", "explain aten::mm --brief",
)  # fmt: skip
# As in tiktoken's own definition of the vocabulary.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
SPLIT = _WORDS + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def main() -> None:
    import tiktoken
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("cl100k", type=Path)
    parser.add_argument("anthropic", type=Path)
    given = parser.parse_args()
    lines = (line.split() for line in given.cl100k.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    first = tiktoken.Encoding("cl100k_base", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})
    second = Tokenizer.from_file(str(given.anthropic))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    texts = []
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "opscope", *command.split()],
            capture_output=True, text=True, check=True, cwd=ROOT, env=environment,
        )  # fmt: skip
        counts = {"cl100k_base": len(first.encode(done.stdout)), "anthropic": len(second.encode(done.stdout).ids)}
        texts.append({"command": f"opscope {command}", "counted": count_tokens(done.stdout), **counts})
    least = min(one["counted"] / max(one["cl100k_base"], one["anthropic"]) for one in texts)
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    given.output.write_text(json.dumps({"created": created, "least_ratio": least, "texts": texts}, indent=1) + "\n")
    print(f"counted at least {least:.3f} times the tokens of either vocabulary")


if __name__ == "__main__":
    main()
