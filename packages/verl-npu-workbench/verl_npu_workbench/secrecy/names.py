"""Judges which names may belong to secrets, and which values are known to be harmless."""

from __future__ import annotations

import re
from enum import Enum


class Kind(Enum):
    """The kind of value, such as a password, that a name suggests. A mask such as `<masked: password, 12 characters>`
    shows this kind."""

    PASSWORD = "password"
    """A value chosen by a person. It may contain blanks and punctuation, or be a number."""
    HEADER = "header"
    """The value is the rest of the line."""
    TOKEN = "token"
    KEY = "key"
    PERHAPS = "value"
    """The value of a single word such as `key` or `token`, which is also an ordinary word."""
    HARMLESS = ""


_CHINESE = re.compile(r"密码|口令|密钥|秘钥|令牌|凭证|私钥|凭据")
_STRONG_PARTS = (
    (re.compile("(?<!un)authorization|cookie|privatetoken|xauth"), Kind.HEADER),
    (re.compile("passw|passphrase|passcode|passwd|secret|credential|connectionstring"), Kind.PASSWORD),
    (
        re.compile("apikey|accesskey|privatekey|accountkey|signingkey|encryptionkey|sshkey|masterkey|licensekey"),
        Kind.KEY,
    ),
    (re.compile("(?:auth|access|refresh|session|bearer|id|bot|csrf|personal|api)token(?!id)"), Kind.TOKEN),
)
"""Parts that mark a name as a secret's. They are searched in the name's letters without separators."""
_STRONG_WORDS = {
    **dict.fromkeys(("pw", "pwd", "psk", "otp", "totp", "passcode", "userpw"), Kind.PASSWORD),
    **dict.fromkeys(("cred", "creds", "dsn", "hmac", "jwt", "sas", "csrf", "sid"), Kind.TOKEN),
    **dict.fromkeys(("sk", "ak", "apikeys"), Kind.KEY),
}
"""Words that mark a name as a secret's."""
_WEAK_WORDS = {
    **dict.fromkeys(("key", "keys"), Kind.KEY),
    **dict.fromkeys(("token", "tokens", "sig", "signature", "session", "webhook"), Kind.TOKEN),
    **dict.fromkeys(("pass", "auth", "oauth", "salt"), Kind.PASSWORD),
}
"""Words that mark a name as a secret's unless another word shows that it is not."""
_WEAK_ENDS = re.compile(r"(?P<password>.(?:pass|pwd|pw|creds?|auth))$|(?P<key>.keys?)$|(?P<token>.token|token.)")
"""Weak words at the end of a compound word. `token` is also recognized at its beginning."""
_HARMLESS_WORDS = re.compile(
    r"(?:mon|tur|hot|don|hoc|joc|whis|low)keys?|key(?:word|board|point|frame|note|stone)s?|.*(?:tokeni[sz]|tokenwise).*"
    r"|bypass|compass|surpass|trespass|singlepass|multipass"
)
"""Ordinary words that contain a weak word."""
_QUALIFIERS = """
action advantage agg audio avg balance baseline batch batched begin bias bos budget cache cached check cls column
configured count counts default dict dir disable draft dtype duplicate embed embedding embeddings enable enabled
end entropy eos error errors expert file fn folder forbidden full function generated global group head heads hit
home id ids idx image images implicit index indices input layer layers len length lens level levels limit local
logit logits loss mask masks max mean messages metric min missing mode name names nested new next non norm num
number optional output pad padding parallelism partition past path per policy position positions pre prev prob
probs proj prompt prompts query rate ratio required response reward rewards rms router routing score scores sep
shape sharding size skip sock sort spec special speculative start stat states stats std stop sum teacher tensor
thinking throughput tools total type types unexpected unk unused usage use video vision weight weights window
"""
_QUALIFIER_WORDS = frozenset(_QUALIFIERS.split())
"""Words that show that a name with a weak word belongs to a setting, a part of a model, a data set, or a metric."""
_UNITS = ("s", "sec", "second", "seconds", "ms")
"""Units at the end of a name. They show that it belongs to a setting, a part of a model, a data set, or a metric."""
_SECRET_BEFORE = re.compile(
    r"(?i)\b(api|secret|access|private|account|storage|encryption|signing|master|license|client|bot"
    r"|auth|bearer|refresh|session|personal|service|wandb|hf|ssh|security)(?:[ -]access)?[ -]$"
)
"""Words before `key` or `token` in prose. Together they name a secret."""
_NAME_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_EMPTY = re.compile(
    r"(?i)(?:none|null|nil|true|false|yes|no|on|off|empty|unset|undefined|default|auto|nan|inf|str|string|bytes|int"
    r"|float|bool|dict|list|tuple|optional\[\w+\]|secretstr|\*+|\.{2,}|…|x{3,}|[-_\\,;:.!)\]}]*)"
)
_PLACEHOLDER = re.compile(
    r"(?i)[<\[{%$].*|\W*(?:your|my)[-_ ].*|xxx.*|changeme|redacted|(?:os|self|args|cfg|config)\.\w.*"
)
_NUMBER = re.compile(r"[-+]?(?:\d[\d,_]*)(?:\.\d+)?(?:e[-+]?\d+)?%?", re.IGNORECASE)
_SMALL_NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|-?\d{1,3}", re.IGNORECASE)
_SHAPE = re.compile(r"[\[(]?(?:[-+]?[\d.]+|None|True|False)(?:,\s*(?:[-+]?[\d.]+|None|True|False))*,?[\])]?")
_WORD = re.compile(r"[A-Za-z_]+\d?(?:[.\-][A-Za-z_]+\d{0,2}|\.\d+)*")
_MESSAGE = re.compile(
    r"(?i)(?:is|was|must|should|can|cannot|has|not|no|none|invalid|incorrect|missing|required|expired|failed|denied|wrong"
    r"|authentication|unknown|unsupported|unauthorized|found|given|got|expected|for|of|in|to|from|and|or|with|the|a|an"
    r"|are|will|which|that|mismatch|per)\b[a-z ,.]*"
)
"""The beginning of a sentence about a secret, such as `is missing`, which is not its value."""
_PATH = re.compile(r"[\"']?(?:~|\.{0,2})/[\w.+@=/\-]*")
_SETTING = re.compile(
    r"\+{0,2}(?:actor_rollout_ref|actor|rollout|ref|critic|data|algorithm|trainer|reward|reward_model|env|model|optim|engine"
    r"|ray_kwargs|ray_init|custom_reward_function|distillation|async_training|global_profiler)(?:\.[a-z_]+\d?)+"
)
"""A key of verl's configuration."""
_MOST_TOKEN_DIGITS = 6
"""The maximum number of digits of a number that may be a token ID in a vocabulary."""


def kind_of(name: str, before: str = "") -> Kind:
    """Return the kind of value, such as a password, that a name suggests. `before` is the text that precedes the
    name."""
    if _CHINESE.search(name):
        return Kind.PASSWORD
    letters = re.sub(r"[^a-z]", "", name.lower())
    words = [word.lower() for word in _NAME_WORDS.findall(name.rpartition(".")[2] or name)]
    # PWD and names such as *_FILE are places of files.
    if (letters in ("pwd", "oldpwd") and name.isupper()) or words[-1:] in (["path"], ["file"], ["dir"], ["sock"]):
        return Kind.HARMLESS
    for pattern, kind in _STRONG_PARTS:
        if pattern.search(letters) and not re.search("tokeniz|errors?$", letters):
            return kind
    for word in words:
        if word in _STRONG_WORDS:
            return _STRONG_WORDS[word]
    found = [kind for kind in map(_weak, words) if kind is not Kind.HARMLESS]
    if not found:
        return Kind.HARMLESS
    if before and _SECRET_BEFORE.search(before):
        return found[0]
    if not _QUALIFIER_WORDS.isdisjoint(words) or words[-1] in _UNITS:
        return Kind.HARMLESS
    is_variable = name.isupper() and words[0] in ("key", "token", "auth")
    is_alone = len(words) == 1 and words[0] in _WEAK_WORDS and not is_variable
    return Kind.PERHAPS if is_alone or words[-1] == "tokens" else found[-1]


def _weak(word: str) -> Kind:
    if word in _WEAK_WORDS:
        return _WEAK_WORDS[word]
    if _HARMLESS_WORDS.fullmatch(word):
        return Kind.HARMLESS
    if word.startswith("auth") and not word.startswith("author"):
        return Kind.PASSWORD
    found = _WEAK_ENDS.search(word)
    return Kind[found.lastgroup.upper()] if found and found.lastgroup else Kind.HARMLESS


def is_harmless(value: str, kind: Kind) -> bool:
    """Return whether a value is known to be harmless, although its name may belong to a secret."""
    text = value.strip().strip("\"'")
    if _EMPTY.fullmatch(text) or _PLACEHOLDER.fullmatch(text):
        return True
    if kind is Kind.PERHAPS:
        number = _NUMBER.fullmatch(text)
        return bool(
            (number and (sum(map(str.isdigit, text)) <= _MOST_TOKEN_DIGITS or "." in text))
            or _SHAPE.fullmatch(text)
            or (_WORD.fullmatch(text) and not is_random(text))
            or _PATH.fullmatch(text)
        )
    if _SETTING.fullmatch(text) or (kind in (Kind.KEY, Kind.TOKEN) and _SMALL_NUMBER.fullmatch(text)):
        return True
    return bool(_MESSAGE.fullmatch(text)) and (kind is not Kind.HEADER or " " not in text)


_TURNS = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
_CAPITALS = re.compile(r"(?<=[A-Z])(?=[A-Z])")
_SYLLABLES = re.compile(r"[a-z]{3,}")
_SHORTEST, _SHORTEST_PART = 20, 14
"""The minimum number of letters and digits in a random text, and the minimum length of its longest part."""


def is_random(word: str) -> bool:
    """Return whether a word looks random, that is, whether it switches between lowercase, uppercase, and digits too
    often for a name."""
    letters = sum(map(str.isalnum, word))
    if letters < _SHORTEST or max(map(len, re.split(r"[._/\-]", word))) < _SHORTEST_PART:
        return False
    turns = len(_TURNS.findall(word))
    if not re.search("[a-z]", word):
        return turns / letters > 0.27
    turns += len(_CAPITALS.findall(word))
    if re.search("[A-Z]", word) and sum(map(len, _SYLLABLES.findall(word))) > 0.4 * letters:
        return False
    if re.search("[0-9]", word):
        return turns / letters > 0.27 and len(set(word)) > 9
    return letters >= 32 and turns / letters > 0.35
