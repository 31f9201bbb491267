"""Reads the C++ and CUDA sources of a checkout: rooms, code without comments and literals, scopes, switches.

No parser: the tree is formatted by clang-format, which is enough for brackets to tell functions and switches.
"""
import os
import re

SOURCE_ENDINGS = (".h", ".hpp", ".cpp", ".cu", ".cuh", ".inc")
# Folders at the top that hold no product code. bench and tests are counted apart.
NO_ROOMS = {"tests", "bench", "docs", "cmake", "scenarios", "hardware_profiles", "framework_profiles"}
BESIDE_PRODUCT = ("bench", "tests")
LITERAL_OR_COMMENT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\s\\]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def newlines_of(match):
    text = match.group(0)
    lines = "\n" * text.count("\n")
    return lines if text.startswith(("/", "#")) or text.lstrip().startswith("#") else '""' + lines


def code_of(text):
    """The text without comments, the insides of literals and preprocessor lines; every line keeps its number."""
    return PREPROCESSOR.sub(newlines_of, LITERAL_OR_COMMENT.sub(newlines_of, text))


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


class SourceFile:
    def __init__(self, root, path):
        self.path = path
        self.room = path.split("/")[0]
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            self.text = file.read()
        self.lines = self.text.splitlines()
        self._code = None

    @property
    def code(self):
        if self._code is None:
            self._code = code_of(self.text)
        return self._code

    def includes(self):
        return INCLUDE.findall(self.text)


def source_files(root):
    """Every source file of the rooms, bench and tests, by path. The trees that prove our checks able to fail are left out."""
    found = []
    for top in sorted(os.listdir(root)):
        if not os.path.isdir(os.path.join(root, top)) or re.match(r"\.|build(-|$)", top):
            continue
        if top in NO_ROOMS and top not in BESIDE_PRODUCT:
            continue
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = sorted(f for f in folders if not f.startswith((".", "bad_")))
            for name in sorted(names):
                if name.endswith(SOURCE_ENDINGS):
                    found.append(SourceFile(root, os.path.relpath(os.path.join(folder, name), root)))
    return found


def is_product(file):
    return file.room not in BESIDE_PRODUCT


# -- functions ------------------------------------------------------------------------------------------------

AFTER_PARAMETERS = {"const", "noexcept", "override", "final", "mutable", "try"}


def kind_of_scope(header):
    """What a brace outside of functions opens, by the text before it."""
    header = re.sub(r"^(?:\s*(?:public|private|protected)\s*:)+", "", header)
    header = re.sub(r"^\s*template\s*<[^{}]*?>\s*(?=[\w\[])", "", header).strip()
    if re.search(r"\bnamespace\b", header) or re.fullmatch(r'extern\s*""', header):
        return "names"
    if "operator" not in header:
        if re.search(r"\b(class|struct|union|enum)\b", header) and not re.search(r"\)\s*(const|noexcept|override|$)", header):
            return "names"
        if "(" not in header or re.search(r"(?<![<>!=])=(?!=)", re.sub(r"\([^()]*(?:\([^()]*\)[^()]*)*\)", "()", header)):
            return "value"
    last_word = re.search(r"(\w+)$", header)
    is_initializer = ("->" not in header and re.search(r"\)[^()]*:(?!:)", header) and last_word
                      and last_word.group(1) not in AFTER_PARAMETERS)
    return "initializer" if is_initializer else "function"


def functions(file):
    """(first line, lines, name) of every function, from its signature to its closing brace. Lambdas belong to what holds them."""
    code, found = file.code, []
    scopes, header_begin, parentheses = [], 0, 0
    for token in re.finditer(r"[(){};]", code):
        text, at = token.group(0), token.start()
        in_body = bool(scopes) and scopes[-1][0] in ("function", "value", "block")
        if text == "(":
            parentheses += 1
        elif text == ")":
            parentheses -= 1
        elif text == "{":
            if in_body or parentheses > 0:
                scopes.append(("block", 0, "", parentheses))
                parentheses = 0
                continue
            header = code[header_begin:at]
            kind = kind_of_scope(header)
            begin = header_begin + len(header) - len(header.lstrip())
            label = re.match(r"(?:(?:public|private|protected)\s*:\s*)+", code[begin:at])
            begin += label.end() if label else 0
            name = re.search(r"([\w:~]+|operator\s*\S+)\s*\(", code[begin:at])
            scopes.append((kind, begin, name.group(1) if name else "?", parentheses))
            if kind != "initializer":
                header_begin = at + 1
        elif text == "}" and scopes:
            kind, begin, name, parentheses = scopes.pop()
            if kind == "function":
                first = line_of(code, begin)
                found.append((first, line_of(code, at) - first + 1, name))
            if kind not in ("initializer",) and not any(s[0] in ("function", "value") for s in scopes) and parentheses == 0:
                header_begin = at + 1
        elif text == ";" and not in_body and parentheses == 0:
            header_begin = at + 1
    return found


# -- enums and switches ---------------------------------------------------------------------------------------


def enums(files):
    """Enumerators by the name of each `enum class` of our own."""
    found = {}
    for file in files:
        if "enum class" not in file.text:
            continue
        for match in re.finditer(r"\benum\s+class\s+(\w+)[^{;]*\{([^}]*)\}", file.code):
            found.setdefault(match.group(1), set()).update(re.findall(r"(?:^|,)\s*(\w+)", match.group(2)))
    return found


class Switch:
    def __init__(self, path, line, labels, default, default_line):
        self.path, self.line, self.labels, self.default, self.default_line = path, line, labels, default, default_line

    def enum(self, known):
        for label in self.labels:
            parts = label.split("::")
            if len(parts) > 1 and parts[-2] in known:
                return parts[-2]
            if len(parts) == 1:
                for name, enumerators in known.items():
                    if label in enumerators and not label.isdigit():
                        return name
        return None


def closing(code, opening):
    depth = 0
    for token in re.finditer(r"[{}]", code[opening:]):
        depth += 1 if token.group(0) == "{" else -1
        if depth == 0:
            return opening + token.start()
    return len(code)


def switches(file):
    """Every switch, with its labels and what stands after `default:` (None where there is none)."""
    code, found = file.code, []
    spans = []
    for match in re.finditer(r"\bswitch\s*\(", code):
        opening = code.find("{", match.end())
        spans.append((match.start(), opening, closing(code, opening)))
    for begin, opening, end in spans:
        inner = list(code[opening + 1:end])
        for other_begin, _, other_end in spans:  # what lies deeper belongs to the inner switch
            if opening < other_begin < end:
                for i in range(other_begin, other_end + 1):
                    inner[i - opening - 1] = "\n" if code[i] == "\n" else " "
        body = "".join(inner)
        labels = re.findall(r"\bcase\s+((?:\w+::)*\w+)\s*:(?!:)", body)
        default = re.search(r"\bdefault\s*:", body)
        words = None
        if default:
            following = re.search(r"\bcase\b", body[default.end():])
            # The deeper switches count here: what they do is done by this default.
            stop = opening + 1 + default.end() + following.start() if following else end
            words = code[opening + 1 + default.end():stop]
        found.append(Switch(file.path, line_of(code, begin), labels, words,
                            line_of(code, opening + 1 + default.start()) if default else 0))
    return found
