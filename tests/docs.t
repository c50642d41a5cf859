#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""The documents are complete and true of the code: all options, keys, counters and variables are in the manual,
pages render without warnings, and what the documents point to exists."""

import glob
import json
import os
import re
import shutil
import subprocess
import tempfile

import e2e
from e2e import BUILD, SOURCE, ok, skip

DOCUMENTS = [name for pattern in ("*.md", "doc/*.md") for name in sorted(glob.glob(pattern, root_dir=SOURCE))]


def result(faults, name):
    """Passes if there are no faults."""
    ok(not faults, name, *faults)


def text_of(path):
    return e2e.text_in(f"{SOURCE}/{path}")


def joined(macro):
    """The arguments of a macro that alternates fonts, which joins them."""
    return "".join(quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', macro[1]))


BOLD = "\u2060"


def page_source(name):
    """A manual page, without its comments and changes of font; a bold word within a line has BOLD behind it."""
    text = re.sub(r'^\.\\".*$', "", text_of(f"doc/{name}"), flags=re.M)
    text = re.sub(r"\\fB((?:\w|\\-)+)\\fR(?!\()", rf"\1{BOLD}", text)
    return re.sub(r"\\f(?:\[\w+\]|.)|\\[&c]", "", text).replace("\\-", "-").replace("\\e", "\\")


def as_read(text):
    """Its text, or a part, as its reader sees it, without layout."""
    return re.sub(r"^\.(?:BR|RB|BI|IB|IR|RI)[ \t]+(.*)$", joined, text.replace(BOLD, ""), flags=re.M)


def page(name):
    return as_read(page_source(name))


def sections(name):
    """{(heading, heading below it): source} of a manual page; what stands above the first heading below has "" in its place."""
    found, at = {}, ("", "")
    for line in page_source(name).splitlines(keepends=True):
        if heading := re.match(r"\.(S[HS])[ \t]+(.*)", line):
            at = (heading[2], "") if heading[1] == "SH" else (at[0], heading[2])
        found[at] = found.get(at, "") + line
    return found


def tags(text):
    """The words that a page, or a part of its source, explains: what stands first in its tagged paragraphs."""
    found = re.findall(r"^\.T[PQ].*\n(?:\.(?:B|I)[ \t]+)?(.*)$", as_read(text), flags=re.M)
    return [word for tag in found for word in re.split(r"[\s,=]+", tag) if word]


def tagged(name):
    return set(tags(page_source(name)))


def bold(text):
    """The single words that a part of a page's source has in bold, but names of other pages."""
    found = set(re.findall(rf"([\w-]+){BOLD}", text))
    for macro, line in re.findall(r"^\.(B|BR|BI|RB|IB)[ \t]+(.*)$", text, flags=re.M):
        words = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', line)]
        words = [" ".join(words)] if macro == "B" else words
        found.update(words[at] for at in range(macro.index("B"), len(words), 2) if not re.match(r" ?\(\d\)", " ".join(words[at + 1:])))
    return found


def default_of(text, tag):
    """The default that a part of a page's source gives in the paragraph of that tag; "": none."""
    named = [item for item in re.split(r"^(?=\.TP\n)", as_read(text), flags=re.M) if tag in tags(item)]
    told = re.search(r"\bDefault:\s(?:\.[BI] )?(\S+?)[.;,]?(?=\s)", named[0]) if named else None
    return told[1] if told else ""


def missing(names, found, what):
    """Faults; finding no names at all is one, or the test could not fail."""
    return [f"{what}: nothing found to look for"] * (not names) + [f"{what}: no {name}" for name in names if name not in found]


def compared(known, told, what):
    """Faults of a document: what it does not tell of what there is, and what it tells that there is not."""
    return missing(known, told, what) + [f"{what}: {name}, which there is not" for name in sorted(set(told) - set(known))]


def help_of(*command):
    return subprocess.run([f"{BUILD}/{command[0]}", *command[1:], "--help"], capture_output=True, text=True, check=True).stdout


def options_in(text):
    """The options that a text of --help lists."""
    return sorted(set(re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", text, flags=re.M)))


def defaults_in(text):
    """{option: its default} where a text of --help has one that is a word."""
    items = re.findall(r"^ +(?:-\w,)?(--[a-z-]+.*(?:\n {20}.*)*)", text, flags=re.M)
    found = {item.split()[0]: re.search(r"^\S[^\n]*?=([\w.]+)(?:$|  )|\bdefault: ([\w.]+)$", item, flags=re.M) for item in items}
    return {name: match[1] or match[2] for name, match in found.items() if match}


def subcommands_of(*command):
    """The names below that command, as its --help has them."""
    return re.findall(r"^  ([\w-]+)  ", (help_of(*command) + "Subcommands:").split("Subcommands:")[1], flags=re.M)


def subcommands(*above):
    """All subcommands of monarchctl, and theirs, as lists of words."""
    names = subcommands_of("monarchctl", *above)
    return [[*above, name] for name in names] + [words for name in names for words in subcommands(*above, name)]


def counters(which):
    block = text_of("runtime/layout/board_layout.h").split(f"#define MONARCH_{which}_COUNTERS(X)")[1].split("\n\n")[0]
    return re.findall(r"X\((\w+),", block)


def helps():
    """{verb of monarchctl: its --help, and of what is below it}"""
    return {verb: "".join(help_of("monarchctl", *words) for words in subcommands() if words[0] == verb) for verb in subcommands_of("monarchctl")}


def part_faults(text, names, part):
    """Faults of a page's part that describes these options, of which --help has that text."""
    return (compared(names, [tag for tag in tags(part) if tag.startswith("--")], "OPTIONS")
            + [f"OPTIONS: {name} without 'Default: {value}'" for name, value in defaults_in(text).items() if default_of(part, name) != value])


def options():
    parts, verbs = sections("monarchctl.1"), helps()
    result(part_faults("", options_in(help_of("monarchctl")), parts["OPTIONS", ""]),
           "monarchctl.1 has the options of monarchctl, and no others")
    for heading, below in ("DESCRIPTION", "monarchctl "), ("OPTIONS", "Of "):
        told = [name.replace("\\", "").removeprefix(below) for above, name in parts if above == heading and name]
        result(compared(verbs, told, heading), f"monarchctl.1, {heading}: a part for each subcommand, and no other")
    usage = dict(re.findall(r"^\.B monarchctl (\w[\w-]*)(.*)$", parts["SYNOPSIS", ""], flags=re.M))
    result(compared(verbs, usage, "SYNOPSIS"), "monarchctl.1, SYNOPSIS: a line for each subcommand, and no other")
    for verb, text in verbs.items():
        names = [name for name in options_in(text) if name != "--help"]
        line = usage.get(verb, "")
        shown = re.findall(r"--[a-z-]+", line) + [name for name in names if "[option" in line]
        result(part_faults(text, names, parts.get(("OPTIONS", f"Of {verb}"), "")) + compared(names, shown, "SYNOPSIS"),
               f"monarchctl.1 has the options of {verb} with their defaults, and no others, in their part")
    parts, text = sections("monarchd.8"), help_of("monarchd")
    for below, group in ("", "Options"), ("Of the agent", "Agent"), ("Of root's helpers", "Root"):
        own = re.search(rf"^{group}:\n((?: .*\n)*)", text, flags=re.M)[1]
        result(part_faults(own, options_in(own), parts["OPTIONS", below]),
               f"monarchd.8 has the options of monarchd --help, {group}, with their defaults, and no others, in their part")


def helper():
    """monarch_account, which has no page of its own: its words and exit statuses."""
    code, part = text_of("runtime/account/monarch_account.cc"), sections("monarchd.8")["MONARCH_ACCOUNT", ""]
    usage = "".join(re.findall(r'"([^"]*)"', re.search(r"std::fprintf\(\s*stderr,\s*(\"usage:.*?)\);", code, flags=re.S)[1]))
    forms = re.split(r"(?=monarch_account )", " ".join(usage.replace("\\n", " ").split()))[1:]
    told = re.findall(r"^\.B (monarch_account .*)$", part, flags=re.M)
    result(compared([form.strip() for form in forms], told, "monarchd.8"), "monarchd.8 has the forms of monarch_account, and no others")
    words = sorted(set(re.findall(r'word == "(--[a-z]+)"', code)))
    result(compared(words, [tag for tag in tags(part) if tag.startswith("--")], "monarchd.8"), "and its options")
    statuses = re.findall(r"k\w+ = (\d+)", re.search(r"enum Exit \{(.*?)\}", code)[1])
    result(compared([*statuses, "127"], [tag for tag in tags(part) if tag.isdigit()], "monarchd.8"), "and its exit statuses")


def plugin():
    code = text_of("spank/options.cc")
    names = ["--" + name for name in re.findall(r'_name\[\] = "([\w-]+)"', code)]
    part = sections("monarch.7")["OPTIONS", ""]
    arguments = dict(re.findall(r'(\w+)_argument\[\] = "([^"]+)"', code))
    known = [f"--{name}" + (f"={arguments[which]}" if which in arguments else "") for which, name in re.findall(r'(\w+)_name\[\] = "([\w-]+)"', code)]
    told = re.findall(r"^\.TP\n(?:\.B )?(--\S+)$", as_read(part), flags=re.M)
    result(compared(known, told, "monarch.7"), "monarch.7 has the plugin's options with their arguments, and no others")
    seconds = set(re.findall(r"wait_seconds = (\d+);", text_of("runtime/config/user_options.h")) + re.findall(r"\(default (\d+)\)", code)
                  + [default_of(part, "--monarch-wait-timeout"), default_of(sections("monarchctl.1")["OPTIONS", "Of run"], "--wait-timeout")])
    result(sorted(seconds) if len(seconds) != 1 else [], "the default of --monarch-wait-timeout and of run's --wait-timeout is that of the code")
    result(missing(names, page("spank_monarch.8"), "spank_monarch.8"), "the options are named in spank_monarch.8, too")
    words = re.findall(r'\{"(\w+)=", &', code)
    told = re.findall(r"^\.TP\n([a-z_]+)=", page("spank_monarch.8"), flags=re.M)
    result(compared(words, told, "spank_monarch.8"), "spank_monarch.8 has the words of plugstack.conf, and no others")
    hooks = re.findall(r"int slurm_spank_(\w+)\(", text_of("spank/spank_monarch.cc"))
    result(missing(hooks, page("spank_monarch.8"), "spank_monarch.8") + missing(hooks, text_of("doc/slurm.md"), "slurm.md"),
           "the plugin's hooks are in spank_monarch.8 and slurm.md")


def environment():
    names = set()
    for file in glob.glob(f"{SOURCE}/preload/*/*.cc") + glob.glob(f"{SOURCE}/spank/*.cc") + glob.glob(f"{SOURCE}/admin/*.cc"):
        names.update(re.findall(r'"(MONARCH_IO_\w+)"', text_of(os.path.relpath(file, SOURCE))))
    result(missing(sorted(names), tagged("monarch.7"), "monarch.7"), "the environment variables are in monarch.7")
    told = set(re.findall(r"MONARCH_IO_\w*[A-Z]\b", "".join(page(os.path.basename(p)) for p in glob.glob(f"{SOURCE}/doc/*.[1-8]"))))
    result(sorted(told - names), "the manual names no other")


# A section of monarch.conf, and its heading in the manual.
CONF = {"tier": "[tier.NAME]", "agent": "[agent]", "peer": "[peer]", "accounting": "[accounting]",
        "policy": "[policy], [policy.partition.NAME], [policy.account.NAME], [policy.qos.NAME]"}


def shown_config():
    """{section: {key: its default, None if there is none}} as the program has them, of a configuration with one tier."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write("[tier.x]\npath = /scratch\nquota = 1G\n")
        file.flush()
        run = subprocess.run([f"{BUILD}/monarchctl", "config", "show", "--json", file.name], capture_output=True, text=True, check=True)
    found = {}
    for value in json.loads(run.stdout)["values"]:
        found.setdefault(value["section"].removesuffix(".x"), {})[value["key"]] = value["value"] if value["source"] == "default" else None
    return found


def config():
    text = re.sub(r'"\s*\n\s*"', "", text_of("runtime/config/config.cc"))  # literals in several lines
    known = re.findall(r"\[[\w.]+\]", re.search(r"unknown section \[.*?known are (.*?)\"\)", text, flags=re.S)[1])
    parts, shown = sections("monarch.conf.5"), shown_config()
    result(compared(CONF, shown, "config show"), "monarchctl config show has the sections of monarch.conf, and no others")
    headings = [name for _, heading in parts if heading.startswith("[") for name in heading.split(", ")]
    result(compared(known, headings, "monarch.conf.5"), "monarch.conf.5 has the sections that are known, and no others")
    for section, heading in CONF.items():
        part = parts["DESCRIPTION", heading]
        result(compared(shown[section], tags(part), "monarch.conf.5"), f"monarch.conf.5, {heading}: has the keys, and no others")
        defaults = {key: value for key, value in shown[section].items() if value is not None}
        if section != "policy":  # whose keys have none: they leave it to a more general section
            result([f"{key} = {value}, not {default_of(part, key)!r}" for key, value in defaults.items() if default_of(part, key) != value]
                   + ["no default found"] * (not defaults), "and the defaults are there")


# Parts of monarchctl.1: which files print the fields that they are about, and where the other words are from that the first has in bold.
FIELDS = [(["OUTPUT OF TIERS"], ["admin/tiers.cc"], []),
          (["OUTPUT OF STATUS", "Of top"], ["admin/status.cc", "admin/top.cc", "admin/job_text.cc", "runtime/node/nodes_report.cc"], ["runtime/node/job_report.cc"]),
          (["OUTPUT OF PLAN"], ["admin/plan.cc"], []),
          (["OUTPUT OF SIMULATE"], ["admin/simulate.cc"], []),
          (["OUTPUT OF REPORT"], ["admin/report.cc", "admin/timeline.cc"], ["runtime/node/open_times.cc"]),
          (["OUTPUT OF CLEAN AND FLUSH"], ["admin/clean.cc", "admin/flush.cc"], []),
          (["OUTPUT OF DOCTOR", "monarchctl doctor"], ["admin/doctor.cc"], []),
          (["OUTPUT OF CONFIG"], ["admin/config.cc"], []),
          (["Of version"], ["admin/version.cc"], []),
          (["REPORT"], ["runtime/node/job_report.cc", "runtime/node/job_report.h"], ["runtime/node/nodes_report.cc", "runtime/node/open_times.cc", "runtime/config/config.h"])]
NO_FIELDS = {"admin/advice.cc", "admin/container.cc", "admin/page.cc"}  # what looks like one there is none
ELSEWHERE = {"admin/metrics.cc"}  # by tests/metrics.t


def fields_in(text):
    return {one or other for one, other in re.findall(r'\{"(\w+)",\s+(?!TaskCounter|Colour|kColours|")|\["(\w+)"\] = ', text)}


def rules():
    """The names of advice that monarchctl report gives, in their order, and more by sacct's line."""
    return (re.findall(r'^ +\{"([a-z-]+)",\s+\[', text_of("admin/advice.cc"), flags=re.M),
            re.findall(r'return \{?\s*"([a-z-]+)",\s', text_of("admin/report.cc")))


def statistics():
    parts = {below or above: text for (above, below), text in sections("monarchctl.1").items()}
    for which, heading in ("TASK", "tasks"), ("AGENT", "agent"):
        result(compared(counters(which), tags(parts[f'Counters in "{heading}"']), "monarchctl.1"), f"monarchctl.1 has the {which.lower()} counters, and no others")
    verbs, advice, by_line = subcommands_of("monarchctl"), *rules()
    for about, files, more in FIELDS:
        known = fields_in("".join(map(text_of, files))) - {*advice, *by_line}
        words = set(re.findall(r"\w+", "".join(as_read(parts[name]) for name in about)))
        code = "".join(map(text_of, files + more))
        told = sorted(word for word in bold(parts[about[0]]) if re.fullmatch(r"[a-z][a-z_]*[a-z]", word) and word not in verbs)
        result(missing(sorted(known), words, about[0]) + ["no word in bold"] * (not told)
               + [f"{about[0]}: {word}, which {' '.join(files)} have not" for word in told if not re.search(rf'"{word}\\?"', code)],
               f"monarchctl.1, {about[0]}: has the fields that are printed, and no others")
    listed = {file for _, files, _ in FIELDS for file in files} | NO_FIELDS | ELSEWHERE
    result([path for file in sorted(glob.glob(f"{SOURCE}/admin/*.cc")) if (path := os.path.relpath(file, SOURCE)) not in listed
            and fields_in(text_of(path)) - {*advice, *by_line}], "these are all files that print fields")
    told = tags(parts["monarchctl report"])
    result([] if advice == told else [f"monarchctl.1: {told}", f"the code: {advice}"], "monarchctl.1 has the rules of advice in their order")
    result(missing(by_line, bold(parts["monarchctl report"]), "monarchctl report"), "and those of sacct's line")
    tools = re.search(r"\{([\w,-]+)\}", help_of("monarchctl", "container-args"))[1].split(",")
    result(missing(tools, bold(parts["Of container-args"]), "Of container-args"), "monarchctl.1 has the tools of container-args")
    checks = re.findall(r'\{"(\w+)", check_', text_of("admin/doctor.cc"))
    result(compared(checks, tags(parts["monarchctl doctor"]), "monarchctl doctor"), "monarchctl.1 has the checks of doctor, and no others")
    states = re.findall(r'\{"([\w-]+)", Colour::', text_of("admin/jobs.cc"))
    result(compared(states, tags(parts["monarchctl status"]), "monarchctl status"), "monarchctl.1 has the states of jobs, and no others")
    line = text_of("runtime/node/accounting.cc").split("std::string comment_line(")[1].split("\n}\n")[0]
    fields = sorted({one or other for one, other in re.findall(r'(\w+)=(?:[\d{a-z]|")|if_any\("(\w+)"', line)} - {"counters"})
    told = [tag.partition("=")[0] for tag in re.findall(r"^\.TP\n(?:\.B )?(\S+)", as_read(sections("monarch.7")["ACCOUNTING", ""]), flags=re.M)]
    result(compared(fields, set(told) - {"MEDIUM"}, "monarch.7"), "monarch.7 has the fields of sacct's line, and no others")
    used = sorted(set(re.findall(r"Counter::(\w+)", line)))
    result(missing(used, page("monarch.7"), "monarch.7"), "its formulas name the counters that it is made of")


def state_file():
    """The file that MONARCH_IO_STATE names."""
    code = text_of("runtime/agent/progress.cc")
    fields = re.findall(r"(\w+)=", code.split("std::string progress_text(")[1].split("\n}\n")[0].replace("\\n", "\n"))
    states = re.findall(r'return "([\w-]+)";', code.split("const char* name_of(")[1].split("\n}\n")[0])
    part = re.search(r"^\.TP\n\.B MONARCH_IO_STATE\n(.*?)^\.RE$", page_source("monarch.7"), flags=re.M | re.S)[1]
    told = [tag for tag in re.findall(r"^\.T[PQ]\n(?:\.B )?(\w+)=", as_read(part), flags=re.M)]
    result([] if told == fields else [f"monarch.7: {told}", f"the code: {fields}"], "monarch.7 has the lines of the file of MONARCH_IO_STATE, in their order")
    state = re.split(r"^\.TP\n", part, flags=re.M)[1]
    result(compared(states, {word for word in bold(state) if re.fullmatch(r"[a-z][a-z-]*", word)}, "monarch.7"), "and its states, and no others")


def rendering():
    pages = sorted(glob.glob(f"{SOURCE}/doc/*.[1-8]"))
    for path in pages:
        name = os.path.basename(path)
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
    """Links, to headings too, and what looks like a path of the tree, in all Markdown documents."""
    def slug(heading):
        return re.sub(r"[^\w -]", "", heading.replace("`", "")).strip().lower().replace(" ", "-")
    headings = {path: {slug(h) for h in re.findall(r"^#+ (.*)$", text_of(path), flags=re.M)} for path in DOCUMENTS}
    top = "|".join(("admin", "bench", "dev", "doc", "etc", "examples", "preload", "runtime", "spank", "tests"))
    for path in DOCUMENTS:
        text, faults = text_of(path), []
        for to, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
            other = os.path.normpath(os.path.join(os.path.dirname(path), to)) if to else path
            if "://" not in to and not (anchor in headings.get(other, ()) if anchor else os.path.exists(f"{SOURCE}/{other}")):
                faults.append(f"link to {to}#{anchor}")
        files = re.findall(rf"(?<![\w/.])(?:\./)?((?:{top})/[\w./*-]+[\w*])", text)
        faults += [file for file in files if not glob.glob(f"{SOURCE}/{file}")]
        result(sorted(set(faults)), f"{path}: links and paths exist")


def installed():
    """What `make install` puts beside the README, in the same folders: all documents, and what they link to."""
    rule = text_of("doc/local.mk").split("nobase_dist_doc_DATA = ")[1].split("\n\n")[0]
    names = {name.replace("%D%", "doc") for name in rule.replace("\\\n", " ").split()}
    result(missing(DOCUMENTS, names, "doc/local.mk"), "doc/local.mk installs all documents")
    for path in sorted(name for name in names if name.endswith(".md")):
        links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text_of(path)) if "://" not in link]
        result(sorted({link for link in links if os.path.normpath(os.path.join(os.path.dirname(path), link)) not in names}),
               f"{path}: what it links to is installed")


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
    run = subprocess.run([f"{SOURCE}/tests/matrix.t", "--table"], capture_output=True, text=True, check=True)
    told = re.findall(r"^\| .* \| matrix\.t\b.*\|$", text_of("doc/coverage.md"), flags=re.M)
    result(sorted(set(told) ^ set(run.stdout.splitlines())) + ["no rows"] * (not told), "doc/coverage.md has the table of matrix.t")


# ---- doc/troubleshooting.md and the messages in the code

# Where a job is told something, or the reason in it; and what stands before the texts there.
ERRORS = r"\b(?:Error\{[^,{}]+,|bad_input\(|refusal\()"
TOLD = {
    "spank/options.cc": r"\brefuse\(\s*remote,|slurm_error\((?=\"%s is set)",
    "spank/submit.cc": r"\bslurm_(?:error|info)\(|\bsnprintf\(out, room,|\breturn (?=\")",
    "spank/task.cc": r"\bdprintf\(STDERR_FILENO,",
    "spank/node.cc": r"\bstrcpy\(without,|\bsnprintf\(without, sizeof without,",
    "spank/wait.cc": r"\breturn end\(|\bsnprintf\((?:text|why_|end), sizeof \w+,|\bslurm_error\(",
    "runtime/node/start.cc": ERRORS + r"|\bleave_out\(|\badd_remark\(|return missing \+|fmt::format\((?=\"tier)",
    "runtime/node/job_memory.cc": r"tracked\) return|is_counted\(groups\) \?",
    "runtime/node/closing.cc": r"\breturn (?=\"|text \+|fmt::format\((?=\"the tiers))|\? (?=\"(?:each|more))",
    "runtime/node/policy.cc": ERRORS,
    "runtime/node/job_options.cc": ERRORS + r"|\bremark = fmt::format\(|\bfmt::format\((?=\"\{\} has no tier)",
    "runtime/node/job_peers.cc": ERRORS,
    "runtime/config/user_options.cc": ERRORS,
    "runtime/node/job_dirs.cc": ERRORS,
    "runtime/node/state.cc": r"\bError\{(?:EPERM|errno|ENAMETOOLONG|EREMOTE|ETIMEDOUT|EOPNOTSUPP),",
    "runtime/config/dataset_rules.cc": ERRORS,
    "runtime/config/config.cc": ERRORS[:-1] + r"|errno_error\()(?=[^;]*?(?:dataset \"|lies inside))",
    "runtime/store/store.h": r"\bError\{\s*EOPNOTSUPP,",
    "runtime/hierarchy/discovery.cc": r"\bError\{EPERM, path \+ (?=\": )",
    "runtime/monarchd/monarchd.cc": r"\btext \+=",
    "runtime/agent/load_peers.cc": ERRORS,
    "runtime/agent/agent.cc": r"\bgo_alone\(",
    "runtime/peer/socket.cc": r"errno_error\((?=\"listen)",
    "preload/decide/attach.cc": r"Phase::kOff,|write_line\(log,",
    "python/monarch_io/torch_hints.py": r"\bprint\((?=f)",
    "preload/resolve/roots.cc": r"\bwrite_line\(log,",
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
             if re.match("fallback_|invalidations|chunk_fallbacks|peer_(?!files|bytes|ns)|dup_|evicted_|no_fit|dropped|put_off|.*_errors$", name)]
    result(missing(names, " ".join(quoted), "troubleshooting.md"), "and all counters that name a reason")
    result(missing(sum(rules(), []), re.findall(r"`([a-z-]+)`", text), "troubleshooting.md"), "and all advice of monarchctl report")


# ---- code in the guides

GUIDES = ["README.md", *(f"doc/{name}.md" for name in ("user-guide", "admin-guide", "troubleshooting"))]


def guides():
    """Each block of code says which test runs it, or checks it, or that none does; tests/guides.t has most of these tests."""
    def runs(test, name):
        text = text_of(f"tests/{test}.t") if os.path.exists(f"{SOURCE}/tests/{test}.t") else ""
        listed = re.findall(r"\w+", re.split(r"\nWITH_SLURM = |\ne2e\.main\(", text, maxsplit=1)[-1])
        return name in listed and f"\ndef {name}(" in text
    used = set()
    for path in GUIDES:
        faults = ["code between fences: indent it by four"] * ("\n```" in text_of(path))
        for mark, block in re.findall(r"(?:^|\n)([^\n]*)\n\n((?:    [^\n]*\n+)+)", text_of(path)):
            marked = re.fullmatch(r"<!-- (run|checked) by tests/(\w+)\.t: (\w+) -->", mark)
            if marked and not runs(marked[2], marked[3]):
                faults.append(f"tests/{marked[2]}.t does not run {marked[3]}")
            elif not marked and not re.fullmatch(r"(?:\*Not run by our tests.*\*|<!-- shown: .+ -->)", mark):
                faults.append(f"neither run nor marked: {block.splitlines()[0].strip()} ...")
            used.update([marked[1]] if marked else [])
        result(faults, f"{path}: the code in it is run or checked by a test, or marked")
    result(missing(["run", "checked"], used, "the guides"), "both marks are used")
    loops = [re.findall(r"^for _ in .*?\ndone$", text, flags=re.M | re.S) for text in (page("monarch.7"), text_of("etc/sbatch/wait.sh"))]
    result([] if loops[0] and loops[0] == loops[1] else loops, "monarch.7: the script that waits is etc/sbatch/wait.sh's, which tests/guides.t runs")


def spelled(path):
    """The code in a document: what stands in backquotes, and the lines of its blocks; of a page, what it quotes, and its examples."""
    if not path.endswith(".md"):
        text = page_source(os.path.basename(path))
        examples = "".join(re.findall(r"^\.EX\n(.*?)^\.EE$", text, flags=re.M | re.S))
        inline = [code.replace("\\-", "-") for code in re.findall(r"\\fB((?:[^\\]|\\-)+)\\fR", text_of(path))]
        return inline + re.findall(r'"([^"]*)"', "\n".join(re.findall(r"^\..*$", text, flags=re.M))) + examples.replace("\\\n", " ").splitlines()
    text = re.sub(r"^```.*?^```", "", text_of(path), flags=re.M | re.S)
    blocks = re.compile(r"(?<=\n\n)(?: {4}.*\n+)+")
    lines = "".join(blocks.findall(text)).replace("\\\n", " ").splitlines()
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", blocks.sub("", text)) + lines]


def command_faults(code, known):
    """What of a line is no command of Monarch's, by {command: its options}."""
    faults = []
    for program, text in re.findall(r"(?:^|[ /('])(monarchctl|monarchd|monarch_account) ([^|;&)']*)", code):
        command = program
        for word in text.split(" -- ")[0].split():
            ends, word = word.endswith(":"), word.rstrip(":").lstrip("[")
            if f"{command} {word}" in known:
                command += f" {word}"
            elif re.match(r"--[a-z]", word):
                faults += [f"{command} has no {word}: {code}"] * (re.match(r"[a-z-]+", word)[0] not in known[command])
            elif re.fullmatch(r"[a-z-]+", word) and any(other.startswith(f"{command} ") for other in known):
                faults.append(f"{command} has no {word}: {code}")
            if ends:  # it begins a message
                break
    return faults


def commands():
    known = {"monarch_account": {*re.findall(r"--[a-z]+", text_of("runtime/account/monarch_account.cc"))}}
    known |= {" ".join(words): {*options_in(help_of(*words))} for words in (["monarchd"], ["monarchctl"], *(["monarchctl", *verb] for verb in subcommands()))}
    plugins = {"--" + name for name in re.findall(r'_name\[\] = "([\w-]+)"', text_of("spank/options.cc"))}
    looked_at = ""
    for path in [*DOCUMENTS, *sorted(os.path.relpath(path, SOURCE) for path in glob.glob(f"{SOURCE}/doc/*.[1-8]"))]:
        faults = []
        for code in spelled(path):
            faults += command_faults(code, known) + [f"no {name}: {code}" for name in re.findall(r"--(?:no-)?monarch[a-z-]*", code) if name not in plugins]
            looked_at += f"{code}\n"
        result(faults, f"{path}: Monarch's commands and options in it are there")
    result(missing(["monarchctl run --dataset", "monarchd --flush", "sbatch --monarch-dataset"], looked_at, "the documents"), "these commands were looked at")


# The folders, from the ground up. An include leads to its own folder, or to one further down.
FLOORS = [["runtime/base", "runtime/layout"], ["runtime/config"], ["runtime/store", "simulate"], ["runtime/hierarchy", "runtime/metadata", "simulate/policies"], ["runtime/placement"],
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


e2e.main(options, helper, plugin, environment, config, statistics, state_file, rendering, places, installed, security, coverage,
         troubleshooting, guides, commands, layers)
