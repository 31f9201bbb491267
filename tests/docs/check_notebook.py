#!/usr/bin/env python3
"""Usage: check_notebook.py TOOLS NOTEBOOK.ipynb [--update | --can-fail]

Every cell of the notebook shows what is stored below it when nbconvert executes it, in an empty folder, with the package
smsim that this Python has (or that lies in TOOLS/python). --update writes what is shown into the notebook; --can-fail
changes one stored digit first, and fails when nobody notices. Skipped (77) where nbconvert or ipykernel is missing.
"""
import os
import pathlib
import re
import sys
import tempfile

try:
    import ipykernel  # noqa: F401  the kernel that executes the cells
    import nbformat
    from nbconvert.preprocessors import CellExecutionError, ExecutePreprocessor
except ImportError as missing:
    print(f"skipped: {missing} (pip install nbconvert ipykernel)")
    sys.exit(77)


def shown(cell):
    """What a person sees below a cell: text of one stream is one, whatever pieces it came in."""
    texts = []
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream":
            if texts and texts[-1][0] == output["name"]:
                texts[-1][1] += output["text"]
            else:
                texts.append([output["name"], output["text"]])
        elif output["output_type"] == "error":
            texts.append(["error", f"{output['ename']}: {output['evalue']}"])
        else:
            data = output["data"]
            texts.append(["html", data["text/html"]] if "text/html" in data else ["text", data.get("text/plain", "")])
    return [(kind, text.strip()) for kind, text in texts]


def cleaned(notebook):
    """As it is stored: without what differs from run to run and nobody reads."""
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata = {}
        cell.execution_count = None
        stored = []
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = None
                if "text/html" in output.data:
                    output.data = {"text/html": output.data["text/html"]}
            if output.output_type == "stream" and stored and stored[-1].output_type == "stream" and stored[-1].name == output.name:
                stored[-1].text += output.text
            else:
                stored.append(output)
        cell.outputs = stored
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def spoil(notebook):
    """Another digit in the first output that has one."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            holder, key = (output, "text") if output["output_type"] == "stream" else (output.get("data", {}), "text/html")
            if re.search(r"\d", holder.get(key, "")):
                holder[key] = re.sub(r"\d", lambda d: str((int(d.group()) + 1) % 10), holder[key], count=1)
                return
    sys.exit("no output of the notebook has a digit")


def execute(notebook, tools):
    # The kernel inherits these.
    os.environ["PATH"] = tools + os.pathsep + os.environ["PATH"]
    package = os.path.join(tools, "python")
    if os.path.isdir(os.path.join(package, "smsim")):
        os.environ["PYTHONPATH"] = package + os.pathsep + os.environ.get("PYTHONPATH", "")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = os.path.join(folder, "ipython")
        work = os.path.join(folder, "work")
        os.mkdir(work)
        runner = ExecutePreprocessor(timeout=600, kernel_name="python3")
        runner.preprocess(notebook, {"metadata": {"path": work}})


def main():
    tools, page = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
    mode = sys.argv[3] if len(sys.argv) > 3 else ""
    notebook = nbformat.read(page, as_version=4)
    if mode == "--can-fail":
        spoil(notebook)
    wanted = [shown(cell) for cell in notebook.cells]
    try:
        execute(notebook, tools)
    except CellExecutionError as failure:
        sys.exit(f"a cell of {page} fails: {failure}")
    got = [shown(cell) for cell in notebook.cells]
    changed = [i for i, (want, have) in enumerate(zip(wanted, got)) if want != have]
    if mode == "--update":
        nbformat.write(cleaned(notebook), page)
        print(f"{page}: {len(changed)} cells changed")
    elif mode == "--can-fail":
        sys.exit(0 if changed else "a wrong digit was not noticed")
    elif changed or sum(1 for texts in wanted if texts) < 5:
        for i in changed:
            print(f"== cell {i}\n{notebook.cells[i].source}\n-- the notebook\n{wanted[i]}\n-- shown\n{got[i]}")
        sys.exit(f"{len(changed)} cells show something else: {sys.argv[0]} {sys.argv[1]} {page} --update")
    else:
        print(f"{sum(1 for texts in got if texts)} cells show what {page.name} holds")


if __name__ == "__main__":
    main()
