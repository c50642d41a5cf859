#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The documents are complete and true of the code: all options, keys, counters and variables are in the manual,
pages render without warnings, and what the documents point to exists."""

import glob
import os
import re
import shutil
import subprocess
import sys

BUILD = os.environ["MONARCH_BUILDDIR"]
SOURCE = os.environ["MONARCH_SRCDIR"]

DOCUMENTS = [name for pattern in ("*.md", "doc/*.md") for name in sorted(glob.glob(pattern, root_dir=SOURCE))]

count = failed = 0


def result(faults, name):
    """One TAP line: passes if there are no faults."""
    global count, failed
    count += 1
    failed += bool(faults)
    print("not ok" if faults else "ok", count, "-", name)
    for fault in faults:
        print("#  ", fault)


def skip(name, why):
    global count
    count += 1
    print(f"ok {count} - {name} # SKIP {why}")


def text_of(path):
    with open(f"{SOURCE}/{path}", encoding="utf-8") as file:
        return file.read()


def joined(macro):
    """The arguments of a macro that alternates fonts, which joins them."""
    return "".join(quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', macro[1]))


def page(name):
    """A manual page as its reader sees it, without layout."""
    text = re.sub(r'^\.\\".*$', "", text_of(f"doc/{name}"), flags=re.M)
    text = re.sub(r"\\f(?:\[\w+\]|.)|\\[&c]", "", text).replace("\\-", "-").replace("\\e", "\\")
    return re.sub(r"^\.(?:BR|RB|BI|IB|IR|RI)[ \t]+(.*)$", joined, text, flags=re.M)


def tagged(name):
    """The words that a page explains: what stands first in its tagged paragraphs."""
    tags = re.findall(r"^\.T[PQ].*\n(?:\.(?:B|I)[ \t]+)?(.*)$", page(name), flags=re.M)
    return {word for tag in tags for word in re.split(r"[\s,=]+", tag)}


def missing(names, found, what):
    """Faults; finding no names at all is one, or the test could not fail."""
    return [f"{what}: nothing found to look for"] * (not names) + [f"{what}: no {name}" for name in names if name not in found]


def options_of(*command):
    run = subprocess.run([f"{BUILD}/{command[0]}", *command[1:], "--help"], capture_output=True, text=True, check=True)
    return sorted(set(re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", run.stdout, flags=re.M)))


def subcommands_of(*command):
    """The names below that command, as its --help has them."""
    run = subprocess.run([f"{BUILD}/{command[0]}", *command[1:], "--help"], capture_output=True, text=True, check=True)
    return re.findall(r"^  ([\w-]+)  ", run.stdout.split("Subcommands:")[1], flags=re.M) if "Subcommands:" in run.stdout else []


def subcommands(*above):
    """All subcommands of monarchctl, and theirs, as lists of words."""
    names = subcommands_of("monarchctl", *above)
    return [[*above, name] for name in names] + [words for name in names for words in subcommands(*above, name)]


def counters(which):
    block = text_of("runtime/layout/board_layout.h").split(f"#define MONARCH_{which}_COUNTERS(X)")[1].split("\n\n")[0]
    return re.findall(r"X\((\w+),", block)


def options():
    commands = subcommands_of("monarchctl")
    for names, where in [(("monarchctl",), "monarchctl.1"), (("monarchd",), "monarchd.8"),
                         *((("monarchctl", *words), "monarchctl.1") for words in subcommands())]:
        result(missing(options_of(*names), tagged(where), where), f"the options of {' '.join(names)} are in {where}")
    headings = re.findall(r"^\.SS monarchctl ([\w-]+)", page("monarchctl.1"), flags=re.M)
    result(missing(commands, headings, "monarchctl.1"), "the subcommands of monarchctl are in monarchctl.1")
    result(missing(headings, commands, "monarchctl --help"), "monarchctl.1 describes no other")


def plugin():
    source = text_of("spank/options.cc")
    names = ["--" + name for name in re.findall(r'_name\[\] = "([\w-]+)"', source)]
    result(missing(names, tagged("monarch.7"), "monarch.7"), "the plugin's options are in monarch.7")
    result(missing(names, page("spank_monarch.8"), "spank_monarch.8"), "and named in spank_monarch.8")
    words = re.findall(r'\{"(\w+)=", &', source)
    told = re.findall(r"^\.TP\n(\w+)=", page("spank_monarch.8"), flags=re.M)
    result(missing(words, told, "spank_monarch.8"), "the words of plugstack.conf are in spank_monarch.8")
    hooks = re.findall(r"int slurm_spank_(\w+)\(", text_of("spank/spank_monarch.cc"))
    result(missing(hooks, page("spank_monarch.8"), "spank_monarch.8") + missing(hooks, text_of("doc/slurm.md"), "slurm.md"),
           "the plugin's hooks are in spank_monarch.8 and slurm.md")
    files = [os.path.basename(file) for file in glob.glob(f"{SOURCE}/spank/*.cc")]
    result(missing(files, text_of("doc/slurm.md"), "slurm.md"), "the plugin's files are in slurm.md")


def environment():
    names = set()
    for file in glob.glob(f"{SOURCE}/preload/*/*.cc") + glob.glob(f"{SOURCE}/spank/*.cc") + glob.glob(f"{SOURCE}/admin/*.cc"):
        names.update(re.findall(r'"(MONARCH_IO_\w+)"', text_of(os.path.relpath(file, SOURCE))))
    result(missing(sorted(names), tagged("monarch.7"), "monarch.7"), "the environment variables are in monarch.7")
    told = set(re.findall(r"MONARCH_IO_\w*[A-Z]\b", "".join(page(os.path.basename(p)) for p in glob.glob(f"{SOURCE}/doc/*.[1-8]"))))
    result(sorted(told - names), "the manual names no other")


def config():
    source = re.sub(r'"\s*\n\s*"', "", "".join(text_of(f"runtime/config/{name}.cc") for name in ("config", "policy_keys")))  # literals in several lines
    keys = re.findall(r'key == "(\w+)"', source)
    result(missing(keys, tagged("monarch.conf.5"), "monarch.conf.5"), "the configuration's keys are in monarch.conf.5")
    known = set(re.findall(r"\w+", " ".join(re.findall(r"known are ([a-z_, ]+)\"", source))))
    result(missing(keys, known, "the message"), "and in the message about an unknown one")
    defaults = dict(re.findall(r"int (\w+) = (\d+);", text_of("runtime/config/config.h").split("struct AgentConfig")[1]))
    text = page("monarch.conf.5")
    result([f"{key} = {value}" for key, value in defaults.items()
            if not re.search(rf"^\.B {key}\n(?:(?!^\.TP).*\n)*?Default:\n{value}\.$", text, flags=re.M)]
           + ["no default found"] * (not defaults), "numbers have their defaults there")


def statistics():
    for which in "TASK", "AGENT":
        result(missing(counters(which), tagged("monarchctl.1"), "monarchctl.1"), f"the {which.lower()} counters are in monarchctl.1")
    fields = re.findall(r'\{"(\w+)",', text_of("runtime/node/job_report.cc"))
    result(missing(fields, tagged("monarchctl.1"), "monarchctl.1"), "the report's fields are in monarchctl.1")
    for file in sorted(glob.glob(f"{SOURCE}/admin/*.cc")):
        source = text_of(os.path.relpath(file, SOURCE))
        if fields := re.findall(r'\{"(\w+)",\s+(?!TaskCounter|")|out\["(\w+)"\]', source):
            names = [one or other for one, other in fields]
            result([name for name in names if not re.search(rf"\b{name}\b", page("monarchctl.1"))],
                   f"the fields that {os.path.basename(file)} prints are in monarchctl.1")
    line = text_of("runtime/node/accounting.cc").split("std::string comment_line(")[1].split("\n}\n")[0]
    fields = sorted(set(re.findall(r"(\w+)=[\d{]", line)))
    result(missing(fields, tagged("monarch.7"), "monarch.7"), "the fields of sacct's line are in monarch.7")
    used = sorted(set(re.findall(r"Counter::(\w+)", line)))
    result(missing(used, page("monarch.7"), "monarch.7"), "its formulas name the counters that it is made of")


def rendering():
    pages = sorted(glob.glob(f"{SOURCE}/doc/*.[1-8]"))
    for path in pages:
        name = os.path.basename(path)
        sections = re.findall(r"^\.SH (.*)$", page(name), flags=re.M)
        result(missing(["NAME", "SYNOPSIS", "DESCRIPTION", "FILES", "EXAMPLES", "DIAGNOSTICS", "SEE ALSO"], sections, name),
               f"{name} has the usual sections")
        if not shutil.which("man"):
            skip(f"{name} renders without warnings", "no man (Debian: man-db)")
            continue
        env = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANPAGER": "cat"}
        run = subprocess.run(["man", "--warnings", "-l", path], capture_output=True, text=True, env=env, check=False)
        result([*run.stderr.splitlines(), *([] if run.returncode == 0 and len(run.stdout) > 500 else ["no page"])],
               f"{name} renders without warnings")
    shipped = re.findall(r"%D%/([\w.-]+\.[1-8])\b", text_of("doc/local.mk"))
    result(sorted(set(shipped) ^ {os.path.basename(p) for p in pages}), "doc/local.mk installs all pages")
    others = {f"{name}({section})" for name, section in re.findall(r"^\.BR (monarch[\w.]*|spank_monarch) \((\d)\)",
              "".join(text_of(f"doc/{os.path.basename(p)}") for p in pages), flags=re.M)}
    result([other for other in others if not os.path.exists(f"{SOURCE}/doc/{other[:-3]}.{other[-2]}")],
           "they refer to pages that exist")


def places():
    """Links, and what looks like a path of the tree, in all Markdown documents."""
    top = "|".join(("admin", "bench", "dev", "doc", "etc", "examples", "preload", "runtime", "spank", "tests"))
    for path in DOCUMENTS:
        text, at = text_of(path), os.path.dirname(f"{SOURCE}/{path}")
        links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
        faults = [f"link to {link}" for link in links if not os.path.exists(f"{at}/{link}")]
        files = re.findall(rf"(?<![\w/.])(?:\./)?((?:{top})/[\w./*-]+[\w*])", text)
        faults += [file for file in files if not glob.glob(f"{SOURCE}/{file}")]
        result(sorted(set(faults)), f"{path}: links and paths exist")


def installed():
    """What `make install` puts beside the README, in the same folders: all documents, and what they link to."""
    rule = text_of("doc/local.mk").split("nobase_dist_doc_DATA = ")[1].split("\n\n")[0]
    names = {name.replace("%D%", "doc") for name in rule.replace("\\\n", " ").split()}
    result(missing(DOCUMENTS, names, "doc/local.mk"), "doc/local.mk installs all documents")
    pages = {f"doc/{os.path.basename(page)}" for page in glob.glob(f"{SOURCE}/doc/*.[1-8]")}
    for path in sorted(name for name in names if name.endswith(".md")):
        links = [link for link in re.findall(r"\]\(([^)#]+)\)", text_of(path)) if "://" not in link]
        result(sorted({link for link in links if os.path.normpath(os.path.join(os.path.dirname(path), link)) not in names | pages}),
               f"{path}: what it links to is installed")


def packaged():
    """What `make install` puts into PREFIX/share/monarch is in the packages; else they are not built (tests/packages.t)."""
    installed_there = sorted(set(re.findall(r"\$\(pkgdatadir\)/([\w.-]+)", text_of("etc/local.mk"))) | {"monarch.conf.sample"})
    lists = "".join(text_of(os.path.relpath(path, SOURCE)) for path in glob.glob(f"{SOURCE}/debian/*.install"))
    faults = missing(installed_there, re.findall(r"^usr/share/monarch/([\w.-]+)$", lists, flags=re.M), "debian/*.install")
    faults += missing(installed_there, re.findall(r"^%\{_datadir\}/monarch/([\w.-]+)$", text_of("monarch.spec.in"), flags=re.M), "monarch.spec.in")
    result(faults, "the packages have all that is installed in share/monarch")


def security():
    """Each threat in security.md has a test, and that test is there."""
    table = text_of("doc/security.md").split("## Threats")[1].split("## In the build")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith(("| threat |", "| --- |"))]
    faults = ["no rows"] * (not rows)
    for row in rows:
        tests = re.findall(r"`([\w/]+\.(?:t|cc)): ([^`]+)`", row.split(" | ")[-1])
        faults += [f"no test: {row}"] * (not tests)
        faults += [f"{file} has no {name}" for file, name in tests
                   if not os.path.exists(f"{SOURCE}/tests/{file}") or name not in text_of(f"tests/{file}")]
    result(faults, "doc/security.md names a test for each threat, and it exists")


def coverage():
    """What coverage.md says of programs is what their tests are about."""
    for test in "matrix.t", "programs.t":
        run = subprocess.run([f"{SOURCE}/tests/{test}", "--table"], capture_output=True, text=True, check=True)
        told = re.findall(rf"^\| .* \| {re.escape(test)}\b.*\|$", text_of("doc/coverage.md"), flags=re.M)
        result(sorted(set(told) ^ set(run.stdout.splitlines())) + ["no rows"] * (not told), f"doc/coverage.md has the table of {test}")


# ---- doc/troubleshooting.md and the messages in the code

# Where a job is told something, or the reason in it; and what stands before the texts there.
ERRORS = r"\b(?:Error\{[^,{}]+,|bad_input\(|refusal\()"
TOLD = {
    "spank/options.cc": r"\brefuse\(\s*remote,|slurm_error\((?=\"%s is set)",
    "spank/submit.cc": r"\bslurm_(?:error|info)\(|\bsnprintf\(out, room,|\breturn (?=\")",
    "spank/task.cc": r"\bdprintf\(STDERR_FILENO,",
    "spank/node.cc": r"\bstrcpy\(without,|\bsnprintf\(without, sizeof without,",
    "spank/wait.cc": r"\breturn end\(|\bsnprintf\((?:text|why_|end), sizeof \w+,|\bslurm_error\(",
    "runtime/node/start.cc": ERRORS + r"|\bleave_out\(|\badd_remark\(|\bwhy = |return missing \+|fmt::format\((?=\"tier)",
    "runtime/node/policy.cc": ERRORS,
    "runtime/node/job_options.cc": ERRORS + r"|\bremark = fmt::format\(|\bfmt::format\((?=\"\{\} has no tier)",
    "runtime/node/job_peers.cc": ERRORS,
    "runtime/config/user_options.cc": ERRORS,
    "runtime/node/job_dirs.cc": ERRORS,
    "runtime/node/state.cc": r"\bError\{(?:EPERM|errno|ENAMETOOLONG|EREMOTE|ETIMEDOUT),",
    "runtime/config/dataset_rules.cc": ERRORS,
    "runtime/config/config.cc": ERRORS[:-1] + r"|errno_error\()(?=[^;]*?(?:dataset \"|lies inside))",
    "runtime/hierarchy/discovery.cc": r"\bError\{EPERM, path \+ (?=\": )",
    "runtime/monarchd/monarchd.cc": r"\btext \+=",
    "runtime/agent/load_peers.cc": ERRORS,
    "runtime/agent/agent.cc": r"\bgo_alone\(",
    "runtime/peer/socket.cc": r"errno_error\((?=\"listen)",
    "preload/client/attach.cc": r"Phase::kOff,",
}
NOT_TOLD = ("[peer] enabled = off", "allow_ and deny_", "unknown error")  # by the functions' other branches, or a part of another text
OF_OTHERS = ("read FILE", "--monarch-dataset: PATH: No such", "--monarch-dataset: PATH: Permission", "--monarch-dataset: PATH: Not a")  # errno's text


def literals(text, at):
    """The string literals of the expression that begins there; those that follow each other at once are one."""
    depth, found, joins = 0, [], False
    token = re.compile(r'"((?:\\.|[^"\\])*)"|\'(?:\\.|[^\'\\])\'|(\s+)|(.)', re.S)
    while at < len(text):
        m = token.match(text, at)
        at = m.end()
        if m[1] is not None:
            found += [""] * (not joins)
            found[-1] += m[1].replace('\\"', '"').replace("\\n", "")
            joins = True
        elif m[3]:
            joins = False
            depth += (m[3] in "([{") - (m[3] in ")]}")
            if depth < 0 or (depth == 0 and m[3] == ";"):
                break
    return found


SHORTEST = 9  # characters of a part of a message that can be looked for


def parts_of(text, gaps):
    """What stands between the gaps, without what is too short."""
    parts = [" ".join(part.replace("%%", "%").split()).strip(" :,'()") for part in re.split(gaps, text)]
    return [part for part in parts if len(part) >= SHORTEST and " " in part]


def troubleshooting():
    """Each message that a job is told has an entry, and each entry is of a message that there is. An entry may leave out a remedy, and,
    by "...", the rest."""
    text = text_of("doc/troubleshooting.md")
    quoted = [" ".join(words.split()) for words in re.findall(r"`([^`]+)`", text)]
    begun = [part for words in quoted if "..." in words for part in parts_of(words, r"\.\.\.|; |\b[A-Z]{2,}\b|\bN\b")]
    entries = [" ".join(entry.split()) for item in re.findall(r"^- ((?:`[^`]+`(?:, |,\n *)?)+)", text, flags=re.M)
               for entry in re.findall(r"`([^`]+)`", item)]
    faults, said, pieces = [], "", set()
    for file, before in TOLD.items():
        source = text_of(file)
        told = [literal for place in re.finditer(before, source) for literal in literals(source, place.end())]
        gaps = r"\{[^{}]*\}|%(?:\.\*s|ll?[ud]|[udsx])"
        for piece in [part for literal in told for part in parts_of(literal.split("; ")[0], gaps)]:
            pieces.add(piece)
            if piece not in NOT_TOLD and not any(piece in words for words in quoted) and not piece.startswith(tuple(begun)):
                faults.append(f"no entry: {piece} ({file})")
        faults += [f"{file}: no message found"] * (not any(parts_of(literal, gaps) for literal in told))
        said += "\n" + "\n".join(" ".join(literal.replace("%%", "%").split()) for literal in told)
    result(sorted(set(faults)), "doc/troubleshooting.md has all that a job is told")
    stale = [f"{entry}: {part}" for entry in entries for part in parts_of(entry, r"\.\.\.|; |\b[A-Z]{2,}\b|\bN\b|N%") if part not in said and not any(piece in part for piece in pieces)]
    result([fault for fault in stale if not fault.startswith(OF_OTHERS)] + ["no entries"] * (not entries), "and no message that there is not")
    names = [name for which in ("TASK", "AGENT") for name in counters(which)
             if re.match("fallback_|invalidations|chunk_fallbacks|peer_(?!files|bytes)|dup_|evicted_|no_fit|dropped|put_off|.*_errors$", name)]
    result(missing(names, " ".join(quoted), "troubleshooting.md"), "and all counters that name a reason")
    rules = re.findall(r'^ +\{"([a-z-]+)", \[', text_of("admin/advice.cc"), flags=re.M)
    rules += re.findall(r'return \{?\s*"([a-z-]+)",\s', text_of("admin/report.cc"))
    result(missing(rules, re.findall(r"`([a-z-]+)`", text), "troubleshooting.md"), "and all advice of monarchctl report")


# ---- code in the guides

GUIDES = ["README.md", *(f"doc/{name}.md" for name in ("user-guide", "admin-guide", "troubleshooting"))]


def guides():
    """Each block of code says which test runs it, or that none does; tests/guides.t has most of these tests."""
    def runs(test, name):
        text = text_of(f"tests/{test}.t") if os.path.exists(f"{SOURCE}/tests/{test}.t") else ""
        listed = re.findall(r"\w+", re.split(r"\nWITH_SLURM = |\ne2e\.main\(", text, maxsplit=1)[-1])
        return name in listed and f"\ndef {name}(" in text
    used = set()
    for path in GUIDES:
        faults = ["code between fences: indent it by four"] * ("\n```" in text_of(path))
        for mark, block in re.findall(r"(?:^|\n)([^\n]*)\n\n((?:    [^\n]*\n+)+)", text_of(path)):
            run = re.fullmatch(r"<!-- run by tests/(\w+)\.t: (\w+) -->", mark)
            if run and not runs(run[1], run[2]):
                faults.append(f"tests/{run[1]}.t does not run {run[2]}")
            elif not run and not re.fullmatch(r"(?:\*Not run by our tests.*\*|<!-- shown: .+ -->)", mark):
                faults.append(f"neither run nor marked: {block.splitlines()[0].strip()} ...")
            used.update([run[1]] if run else [])
        result(faults, f"{path}: the code in it is run by a test, or marked")
    result(missing(["guides"], used, "the guides"), "tests/guides.t runs code of the guides")
    loops = [re.findall(r"^for _ in .*?\ndone$", text, flags=re.M | re.S) for text in (page("monarch.7"), text_of("etc/sbatch/wait.sh"))]
    result([] if loops[0] and loops[0] == loops[1] else loops, "monarch.7: the script that waits is etc/sbatch/wait.sh's, which tests/guides.t runs")


def anchors():
    """Links to headings."""
    def slug(heading):
        return re.sub(r"[^\w -]", "", heading.replace("`", "")).strip().lower().replace(" ", "-")
    headings = {path: {slug(h) for h in re.findall(r"^#+ (.*)$", text_of(path), flags=re.M)} for path in DOCUMENTS}
    for path in DOCUMENTS:
        faults = []
        for to, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text_of(path)):
            other = os.path.normpath(os.path.join(os.path.dirname(path), to)) if to else path
            if "://" not in to and anchor not in headings.get(other, ()):
                faults.append(f"{to}#{anchor}")
        result(faults, f"{path}: the headings that it links to exist")


def picture():
    """README's picture shows the figures that doc/performance has."""
    sys.path.insert(0, f"{SOURCE}/bench")
    sys.dont_write_bytecode = True
    import picture as drawing  # pylint: disable=import-outside-toplevel
    result([] if drawing.svg(f"{SOURCE}/doc/performance") == text_of("doc/performance/gain.svg") else ["run dev/bench all --table"],
           "doc/performance/gain.svg is of the figures beside it")


# ---- words

# A clause that stands in the place of a noun hides the subject from a reader who does not know Monarch.
NO_SUBJECT = re.compile(r"(?:^|[.:;!?][\"')*]* )[\"'(*]*((?:What|Who|Whoever|Whatever|Whose)\b[^.!?]*)")


def paragraphs(path):
    """The prose of a document, without headings, code and links; a cell of a table, an item of a list and a tag are paragraphs."""
    if path.endswith(".md"):
        text = re.sub(r"<!--.*?-->|^#.*$|(?<=\n\n)(?: {4}.*\n+)+", "\n\n", text_of(path), flags=re.M)
        text = re.sub(r"!?\[[^]]*\]\([^)]*\)|`[^`]*`", "CODE", text)
        parts = re.split(r"\n\s*\n|^ *(?:-|\d+\.) +|\|", text, flags=re.M)
    else:
        text = re.sub(r"^\.(EX|nf)\n(?:.*\n)*?\.(EE|fi)$", ".PP", page(os.path.basename(path)), flags=re.M)
        text = re.sub(r"^(\.T[PQ].*\n.*)$", r"\1\n.PP", text, flags=re.M)
        parts = re.split(r"^\..*$", re.sub(r"^\.[BI] +", "", text, flags=re.M), flags=re.M)
    return [" ".join(part.split()) for part in parts if part.strip()]


def sentences():
    pages = sorted(os.path.relpath(path, SOURCE) for path in glob.glob(f"{SOURCE}/doc/*.[1-8]"))
    for path in GUIDES + pages:
        prose = paragraphs(path)
        faults = [m[1][:60] for text in prose for m in NO_SUBJECT.finditer(text) if text[m.end():m.end() + 1] != "?"]
        result(faults + ["no prose found"] * (len(prose) < 10), f"{path}: no sentence begins with What or Who")


# The folders, from the ground up. An include leads to its own folder, or to one further down.
FLOORS = [["runtime/base", "runtime/layout"], ["runtime/config"], ["runtime/hierarchy", "runtime/metadata"], ["runtime/placement"],
          ["runtime/peer"], ["runtime/agent", "runtime/node"], ["runtime/monarchd", "admin"]]
# The preload library, and what it takes of the rest.
PRELOAD = [["runtime/layout"], ["preload"], ["preload/next"], ["preload/client"], ["preload/resolve"], ["preload/decide"],
           ["preload/hooks"]]


def includes_of(folders):
    """{file: the files of the tree that it includes}"""
    files = [os.path.relpath(path, SOURCE) for folder in folders for path in glob.glob(f"{SOURCE}/{folder}/*.cc")
             + glob.glob(f"{SOURCE}/{folder}/*.h")]
    return {file: re.findall(r'^#include "([\w.]+/[\w./]+)"', text_of(file), flags=re.M) for file in sorted(files)}


def circles(graph):
    """Includes that lead back to where they start."""
    found, done = [], set()

    def visit(file, way):
        if file in way:
            found.append(" -> ".join([*way[way.index(file):], file]))
        elif file not in done:
            for other in graph.get(file, []):
                visit(other, [*way, file])
            done.add(file)

    for file in graph:
        visit(file, [])
    return found


def layers():
    for floors, name in (FLOORS, "the runtime's"), (PRELOAD, "the preload library's"):
        level = {folder: number for number, floor in enumerate(floors) for folder in floor}
        graph = includes_of(level)
        faults = [f"{file} includes {other}" for file, others in graph.items() for other in others
                  if (at := os.path.dirname(file)) != (to := os.path.dirname(other)) and level.get(to, len(floors)) >= level[at]]
        result(faults + circles(graph) + [f"nothing in {folder}" for folder in level
                                          if not any(os.path.dirname(file) == folder for file in graph)],
               f"{name} includes lead down, and nowhere both ways")


def changelog():
    run = subprocess.run([f"{BUILD}/monarchctl", "version"], capture_output=True, text=True, check=True)
    version = re.search(r"\d+\.\d+\.\d+", run.stdout).group()
    sections = re.findall(r"^## .*$", text_of("CHANGELOG.md"), flags=re.M)
    result([] if any(re.search(rf"\b{re.escape(version)}\b", s) for s in sections) else [f"no section for {version}", *sections],
           "CHANGELOG.md has a section for this version")


for test in (options, plugin, environment, config, statistics, rendering, places, anchors, installed, packaged, security, coverage,
             troubleshooting, guides, picture, sentences, layers, changelog):
    try:
        test()
    except Exception as error:  # pylint: disable=broad-except
        result([f"{type(error).__name__}: {error}"], test.__name__)
print(f"1..{count}")
sys.exit(1 if failed else 0)
