"""Removes secrets from command lines before they are written: results are kept, sent and shown on pull requests.

Replaced are values whose name suggests a secret (``--api-key X``, ``token=X``, ``"password": "X"``), the user and the
query of URLs, and anything that looks like a known kind of token.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from opscope.base.text import lazy_pattern
from opscope.record.configuration import SETTINGS, Value

HIDDEN: Final = "***"
_SECRET_WORDS: Final = frozenset(
    {
        *("token", "key", "apikey", "secret", "password", "passwd", "pwd", "passphrase", "auth", "authorization"),
        *("credential", "credentials", "sas", "sig", "signature", "bearer", "cookie"),
        *("tokens", "secrets", "passwords", "pass", "creds", "oauth", "jwt", "pat"),
    }
)
_SECRET_ENDINGS: Final = ("token", "apikey", "secret", "password", "passwd", "credential", "credentials")
# Numbers beside these words are sizes: --key-dim 64, --pad-token-id 0, --num-key-value-heads 8.
_SIZES: Final = frozenset(
    {
        *("id", "ids", "dim", "dims", "size", "len", "length", "num", "number", "count", "max", "min", "per", "heads"),
        *("head", "n", "dropout", "limit", "budget", "rate"),
    }
)
# --auth-type, --token-file, --key-padding-mask: of what kind a secret is or where it lies, not the secret itself.
_ABOUT: Final = frozenset(
    {
        *("type", "method", "scheme", "mode", "format", "algorithm", "strategy", "policy", "mask", "ids"),
        *("file", "path", "dir", "folder", "column", "field", "index", "position", "positions"),
    }
)
# --pad-token, --eos_token: entries of a vocabulary.
_VOCABULARY: Final = frozenset({"pad", "padding", "eos", "bos", "unk", "cls", "sep", "mask", "special", "start", "end"})
# --sort-key, --image-key: keys of mappings, columns and orders.
_MAPPED: Final = frozenset(
    {
        *("sort", "group", "join", "primary", "foreign", "partition", "index", "dict", "map", "cache", "state"),
        *("monitor", "metric", "loss", "score", "reward", "target", "label", "class", "feature", "data", "dataset"),
        *("input", "output", "image", "video", "audio", "text", "prompt", "caption", "query", "value", "attention"),
    }
)
_BOOLEAN: Final = frozenset({"true", "false", "none", "null", "yes", "no", "on", "off"})
_SHORT_NUMBER: Final = lazy_pattern(r"-?\d{1,4}")
_USER: Final = frozenset({"u", "user"})  # of curl: NAME:PASSWORD
_NAME_AND_PASSWORD: Final = lazy_pattern(r"[^\s:/@]+:(?!\d+$)[^\s/]+")  # not a user and group: -u 1000:1000
_PLAIN_OPTION: Final = lazy_pattern(r"--?[a-z][a-z0-9_.\-]*(=.*)?", re.DOTALL)
_STRUCTURED: Final = lazy_pattern(r"[,:=\"']")
_NUMBER: Final = lazy_pattern(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|true|false|none", re.IGNORECASE)
# The words of a name: apiKey, API_KEY and api-key have two.
_WORD: Final = lazy_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAME: Final = lazy_pattern(r"[\w.\-]+")
_OPTION: Final = lazy_pattern(r"--?[A-Za-z][\w.\-]*")
# --token VALUE inside a word, as in bash -c "curl --token X".
_SPOKEN: Final = lazy_pattern(r"""(?<!\S)--?(?P<name>[A-Za-z][\w.\-]*)\s+(?P<value>"[^"]*"|'[^']*'|[^\s"'-][^\s"']*)""")
# NAME=VALUE and "NAME": "VALUE" inside a word. A value in quotes ends with them, another one where the next begins.
_NAMED: Final = lazy_pattern(
    r"""(?<![\w.\-])(?P<name>-{0,2}[A-Za-z_][\w.\-]*)(?P<between>["']?\s*[=:]\s*)(?P<value>"[^"]*"|'[^']*'|[^\s"',;&{}\[\]()]+)"""
)
_BEARER: Final = lazy_pattern(r"(?i)\b(authorization\s*:\s*\w+|bearer|basic(?=\s+\S*[0-9=]))(\s+)([^\s\"']+)")
_ADDRESS: Final = lazy_pattern(
    # The user part ends with the last @ of the host's part; a slash stands in it only behind a password's colon.
    r"(?P<scheme>(?<![A-Za-z0-9+.\-])[A-Za-z][A-Za-z0-9+.\-]*://)"
    r"(?:(?P<user>[^/\s?#\"']*|[^/@:\s?#\"']+:(?!\d+/)[^@:\s?#\"']*)@)?(?P<place>[^\s?#\"']*)(?P<query>[?#]\S*)?"
)
# Kinds of tokens, as those who issue them describe them: GitHub, GitLab, Hugging Face, OpenAI and Anthropic, AWS,
# Google, Slack, npm, PyPI, Stripe, Groq, NVIDIA, Docker, DigitalOcean, Replicate, SendGrid,
# JSON Web Tokens, and keys in PEM.
_TOKENS: Final = lazy_pattern(
    r"(?<![A-Za-z0-9])(?:"
    + "|".join(
        (
            r"gh[pousr]_[A-Za-z0-9]{20,}",
            r"github_pat_[A-Za-z0-9_]{20,}",
            r"glpat-[A-Za-z0-9_\-]{16,}",
            r"hf_[A-Za-z0-9]{20,}",
            r"sk-(?=[A-Za-z0-9_\-]*\d)[A-Za-z0-9_\-]{16,}",
            r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
            r"(?:gsk_|nvapi-|dckr_pat_|dop_v1_|r8_|GOCSPX-)[A-Za-z0-9_\-]{20,}",
            r"SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}",
            r"(?:AKIA|ASIA)[A-Z0-9]{16}",
            r"AIza[A-Za-z0-9_\-]{30,}",
            r"ya29\.[A-Za-z0-9_\-]{20,}",
            r"xox[abeoprs]-[A-Za-z0-9\-]{10,}",
            r"npm_[A-Za-z0-9]{30,}",
            r"pypi-[A-Za-z0-9_\-]{20,}",
            r"eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]*)?",
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
        )
    )
    + ")"
)
_LONG: Final = 12  # characters of a value with digits that is taken for no ordinary word
_SHORTEST_SCRUBBED: Final = 6  # shorter values stand in too many other words to be searched for


class Redactor(Struct):
    """Replaces secrets, and remembers them so that they can be removed from logs and messages too.

    Attributes:
        names: further names whose values are secrets.
        keep: whether to replace nothing in command lines and settings.
        secrets: the values replaced so far.
    """

    names: frozenset[str] = frozenset()
    keep: bool = False
    secrets: set[str] = field(default_factory=set)

    def arguments(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return a command line's words, as many as before, with secrets replaced."""
        return tuple(words) if self.keep else tuple(self._words(words))

    def settings(self, values: Mapping[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
        """Return settings and their values with secrets replaced; opscope's own settings hold none."""
        return {
            name: result if self.keep or name in SETTINGS else tuple(self._setting(name, value) for value in result)
            for name, result in values.items()
        }

    def scrubbed(self, text: str) -> str:
        """Return a text with every secret replaced that `arguments` and `settings` have met so far."""
        # The longest first: one secret may be a part of another.
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SCRUBBED:
                text = text.replace(secret, HIDDEN)
        return text

    def _setting(self, name: str, value: Value) -> Value:
        if isinstance(value, str):
            return self._hide(value) if self._is_secret(name, value) else self._word(value)
        return self._hide(str(value)) if self._is_secret(name, str(value)) else value

    def _words(self, words: Sequence[str]) -> Iterator[str]:
        waiting = ""  # the name of an option whose value is the next word
        for word in words:
            # After --password, --S3cret is a value, while --verbose is an option: options are in lower case.
            if waiting and not _PLAIN_OPTION.fullmatch(word) and self._is_secret(waiting, word):
                waiting = ""
                yield self._hide(word)
                continue
            waiting = word.lstrip("-") if _OPTION.fullmatch(word) else ""
            yield self._word(word)

    def _word(self, word: str) -> str:
        # Addresses first, while their user and query are as written; known tokens last, in what the names left.
        word = _ADDRESS.sub(self._address, word)
        word = _BEARER.sub(lambda result: f"{result[1]}{result[2]}{self._hide(result[3])}", word)
        word = _NAMED.sub(self._named, _SPOKEN.sub(self._spoken, self._whole(word)))
        return _TOKENS.sub(lambda result: self._hide(result[0]), word)

    def _whole(self, word: str) -> str:
        """Hide the value of a word that is NAME=VALUE; the value may hold blanks, commas and brackets."""
        name, equals, value = word.partition("=")
        name = name.lstrip("-")
        # Of JSON and lists, `_named` hides only the entries that are secrets.
        is_structure = value.startswith(("{", "[")) and _STRUCTURED.search(value)
        if equals and value and not is_structure and _NAME.fullmatch(name) and self._is_secret(name, value):
            return word[: len(word) - len(value)] + self._hide(value)
        return word

    def _named(self, result: "re.Match[str]") -> str:
        value = result["value"]
        quote = value[0] if value[0] in "\"'" else ""
        inner = value.strip(quote) if quote else value
        # What begins with // is the rest of an address, whose scheme looks like a name.
        if not inner or inner.startswith("//") or not self._is_secret(result["name"], inner):
            return result[0]
        return f"{result['name']}{result['between']}{quote}{self._hide(inner)}{quote}"

    def _spoken(self, result: "re.Match[str]") -> str:
        value = result["value"].strip("\"'")
        if not value or not self._is_secret(result["name"], value):
            return result[0]
        return result[0][: -len(result["value"])] + result["value"].replace(value, self._hide(value))

    def _address(self, result: "re.Match[str]") -> str:
        user, query = result["user"], result["query"]
        kept = result["scheme"]
        if user:
            self.secrets.update(filter(None, (user, user.partition(":")[2])))
            kept += f"{HIDDEN}@"
        kept += result["place"]
        if query and len(query) > 1:
            self.secrets.add(query[1:])
            parts = (part.partition("=") for part in re.split("[&;]", query[1:]))
            # An ordinary word such as ?revision=default stands in logs for much else.
            self.secrets.update(value for name, _, value in parts if self._is_secret(name, value) or _is_odd(value))
            kept += f"{query[0]}{HIDDEN}"
        return kept

    def _hide(self, value: str) -> str:
        if value and value != HIDDEN:
            self.secrets.add(value)
        return HIDDEN

    def _is_secret(self, name: str, value: str) -> bool:
        """Tell whether a name suggests a secret and its value can be one."""
        if value == HIDDEN:
            return False
        plain = name.lstrip("-")
        if plain in self.names or plain.rpartition(".")[2] in self.names:
            return True
        words = [word.lower() for word in _WORD.findall(plain)]
        if plain in _USER:
            return _NAME_AND_PASSWORD.fullmatch(value) is not None
        if value.lower() in _BOOLEAN or (_NUMBER.fullmatch(value) and not _SIZES.isdisjoint(words)):
            return False
        return not _is_harmless(words, value) and any(
            word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS) for word in words
        )


def _is_harmless(words: Sequence[str], value: str) -> bool:
    """Tell whether a name only sounds like a secret: the type or file of one, a vocabulary entry, a mapping's key."""
    if not words or words[-1] in _ABOUT:
        return True
    if words[-1] in ("token", "tokens"):
        return not _VOCABULARY.isdisjoint(words)
    return words[-1] in ("key", "keys") and (
        not _MAPPED.isdisjoint(words) or (len(words) == 1 and _SHORT_NUMBER.fullmatch(value) is not None)
    )


def _is_odd(value: str) -> bool:
    """Tell whether a value is long and has digits, unlike an ordinary word."""
    return len(value) >= _LONG and any(letter.isdigit() for letter in value)
