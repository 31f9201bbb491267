#!/usr/bin/env python3
"""Writes the estimator that a SageMaker notebook or script makes as JSON, for `smplan import FILE --from
sagemaker-smp-v1` (or -v2).

    python3 interop/capture/estimator.py train.ipynb [--set NAME=VALUE...] > run.json

The cells run in order with stand-ins for everything outside Python's standard library, and for what of it
touches processes, files or the network: no account is asked and nothing is started. Lines for the shell (!, %)
are left out. What a stand-in answers is unknown: text that begins with REPLACE in the result, false in a
condition. `--set` gives a variable a value (a Python literal) wherever the notebook assigns it. Of the
estimators that are made (PyTorch, TensorFlow, HuggingFace, ModelTrainer, Estimator) the last one with
`modelparallel` or SMP in its distribution is written, else the last.

The answer: the estimator's instance_type, instance_count, entry_point, hyperparameters and distribution, with
"estimator" its class, "others" how many more there were, "failed" how many statements raised, "conditions" what
an `if` asked and nobody knew (its else was taken), and "unknown" the keys whose values a stand-in gave. Exit status 2 where no estimator was made, or its distribution or instances are
not known.
"""
import ast
import builtins
import json
import sys
import types

ESTIMATORS = ("PyTorch", "TensorFlow", "HuggingFace", "Estimator", "ModelTrainer")
KEPT = ("entry_point", "instance_type", "instance_count", "hyperparameters", "distribution")
# Of the standard library: reach beyond the interpreter.
SHUT = ("subprocess", "shutil", "socket", "urllib", "http", "ftplib", "smtplib", "ctypes", "multiprocessing", "tarfile",
        "zipfile", "tempfile", "pathlib", "glob", "asyncio", "webbrowser", "signal", "threading")
OPEN_OS = ("path", "environ", "sep", "linesep", "name")


class Unknown:
    """What a stand-in answers: takes everything, knows nothing."""

    def __init__(self, name):
        self.__dict__["name_"] = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ESTIMATORS:
            return recorder(name)
        return Unknown(f"{self.name_}.{name}")

    def __setattr__(self, name, value):
        pass

    def __call__(self, *positional, **named):
        if self.name_.rpartition(".")[2] in RECORDS:
            return Record(self.name_.rpartition(".")[2], named)
        return Unknown(self.name_ + "()")

    def __getitem__(self, key):
        return Unknown(self.name_ + "[]")

    def __setitem__(self, key, value):
        pass

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0

    def __bool__(self):
        open_conditions.append(self.name_)
        return False

    def __delitem__(self, key):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False

    def __str__(self):
        return "REPLACE_" + self.name_

    __repr__ = __str__

    def __format__(self, form):
        return str(self)


def unknown_operator(self, *others):
    return Unknown(self.name_)


for operator in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "floordiv", "mod", "neg"):
    setattr(Unknown, f"__{operator}__", unknown_operator)
for comparison in ("lt", "gt", "le", "ge"):
    setattr(Unknown, f"__{comparison}__", lambda self, other: False)

# SDK 3's parts of a job, kept with their arguments.
RECORDS = ("Torchrun", "SMP", "MPI", "Compute", "SourceCode")


class Record:
    def __init__(self, name, arguments):
        self.name, self.arguments = name, arguments

    def __getattr__(self, name):
        return Unknown(name)


made = []
open_conditions = []  # what was asked whether it is true, and nobody knows


def recorder(name):
    def make(*positional, **arguments):
        made.append((name, arguments))
        return Unknown(name)
    return make


def stand_in(name):
    module = types.ModuleType(name)
    module.__path__ = []
    module.__getattr__ = Unknown(name).__getattr__
    return module


def import_(name, variables=None, local=None, wanted=(), level=0):
    """The standard library's own modules, and stand-ins for all others."""
    root = name.split(".")[0]
    if root == "os":
        import os
        module = stand_in("os")
        for kept in OPEN_OS:
            setattr(module, kept, getattr(os, kept))
        module.environ = dict(os.environ)
        return module.path if name == "os.path" and wanted else module
    if level == 0 and root in sys.stdlib_module_names and root not in SHUT and root not in ("sys", "importlib", "builtins"):
        return __import__(name, variables, local, wanted, level)
    module = stand_in(name if wanted else root)
    if root == "sys":
        module.version_info, module.argv = sys.version_info, ["notebook"]
    return module


def cells_of(path):
    with open(path) as file:
        text = file.read()
    if not path.endswith(".ipynb"):
        return [text]
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def without_shell(source):
    lines, continues = [], False
    if source.lstrip().startswith("%%"):
        return ""
    for line in source.splitlines():
        indent = line[:len(line) - len(line.lstrip())]
        is_shell = continues or line.lstrip().startswith(("!", "%"))
        lines.append("" if continues else indent + "pass" if is_shell else line)
        continues = is_shell and line.rstrip().endswith("\\")
    return "\n".join(lines)


class Given(ast.NodeTransformer):
    """NAME = anything becomes NAME = the value that the command line gave."""

    def __init__(self, values):
        self.values = values

    def visit_Assign(self, node):
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and node.targets[0].id in self.values:
            node.value = ast.copy_location(ast.Constant(self.values[node.targets[0].id]), node.value)
        return node


class Names(dict):
    """A notebook's variables; what no cell has made is unknown."""

    def __missing__(self, name):
        if name in self["__builtins__"]:
            return self["__builtins__"][name]
        return Unknown(name)


def run(cells, values):
    """How many statements raised."""
    shut = dict(vars(builtins), __import__=import_, print=lambda *a, **k: None, open=lambda *a, **k: Unknown("open"),
                input=lambda *a: "", exec=None, eval=None, compile=None)
    variables, failed = Names(values, __builtins__=shut, __name__="__main__"), 0
    for source in cells:
        try:
            tree = Given(values).visit(ast.parse(without_shell(source)))
        except SyntaxError:
            failed += 1
            continue
        # Statement by statement: one that needs what is unknown does not take the rest of its cell along.
        for statement in tree.body:
            code = compile(ast.fix_missing_locations(ast.Module([statement], [])), "notebook", "exec")
            try:
                exec(code, variables, variables)
            except Exception:  # whatever a notebook raises
                failed += 1
    return failed


def plain(value, place, unknown):
    """JSON, with what is unknown as text and listed."""
    if isinstance(value, dict):
        return {str(key): plain(member, f"{place}.{key}", unknown) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(member, place, unknown) for member in value]
    if isinstance(value, Record):
        return plain(value.arguments, place, unknown)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str) and "REPLACE_" not in value:
        return value
    unknown.append(place)
    return str(value)


def as_estimator(name, arguments):
    """SDK 3's ModelTrainer in the words of SDK 2's estimators."""
    if name != "ModelTrainer":
        return arguments
    result = {"hyperparameters": arguments.get("hyperparameters", {})}
    compute, source, distributed = (arguments.get(key) for key in ("compute", "source_code", "distributed"))
    if isinstance(compute, Record):
        result.update({key: compute.arguments[key] for key in ("instance_type", "instance_count") if key in compute.arguments})
    if isinstance(source, Record) and "entry_script" in source.arguments:
        result["entry_point"] = source.arguments["entry_script"]
    if isinstance(distributed, Record) and isinstance(distributed.arguments.get("smp"), Record):
        result["distribution"] = {"torch_distributed": {"enabled": True}, "smdistributed": {"modelparallel": {
            "enabled": True, "parameters": distributed.arguments["smp"].arguments}}}
    return result


def has_model_parallelism(arguments):
    distribution = arguments.get("distribution")
    return isinstance(distribution, dict) and "modelparallel" in distribution.get("smdistributed", {})


def main():
    words = sys.argv[1:]
    if not words or words[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    values = {}
    for flag, assignment in zip(words[1::2], words[2::2]):
        name, equals, text = assignment.partition("=")
        if flag != "--set" or not equals:
            print(__doc__, file=sys.stderr)
            return 2
        values[name] = ast.literal_eval(text)
    failed = run(cells_of(words[0]), values)
    estimators = [(name, as_estimator(name, arguments)) for name, arguments in made]
    if not estimators:
        print(f"estimator: {words[0]} makes no estimator ({failed} statements raised)", file=sys.stderr)
        return 2
    chosen = ([pair for pair in estimators if has_model_parallelism(pair[1])] or estimators)[-1]
    unknown = []
    result = {key: plain(chosen[1][key], key, unknown) for key in KEPT if key in chosen[1]}
    result.update(estimator=chosen[0], others=len(estimators) - 1, failed=failed,
                  conditions=sorted(set(open_conditions)), unknown=unknown)
    print(json.dumps(result, indent=1))
    needed = [place for place in unknown if place.startswith(("distribution", "instance_"))]
    if needed:
        print(f"estimator: not known without an account: {', '.join(needed)}; give the variables with --set",
              file=sys.stderr)
        return 2
    return 0


sys.exit(main())
