#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""dev/build installs no packages. dev/lab peers: the nodes reach each other, at the rate that was asked for, until one is cut off; Slurm runs on them; and
nothing is left of them."""

import os
import re
import select
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import slurm_lab  # pylint: disable=wrong-import-position
from e2e import NOBODY, SOURCE, equal, ok, scratch, skip, wait_until  # pylint: disable=wrong-import-position
from peers_lab import Peers, why_no_peers  # pylint: disable=wrong-import-position

PORT = 7000
RATE, BYTES = 40, 2 << 20  # Mbit/s; what is sent to measure it
LOST = 5  # seconds; an address that nobody answers for is an error after three

# Tells its name, argv[2], and then, for each byte that it gets, that byte; "D" and "U" let it send and receive BYTES.
SERVER = f"""
import socket, sys, threading
def serve(client):
    client.sendall(sys.argv[2].encode() + b"\\n")
    while byte := client.recv(1):
        if byte == b"D":
            client.sendall(bytes({BYTES}))
        elif byte == b"U":
            left = {BYTES}
            while left:
                left -= len(client.recv(min(left, 1 << 16)))
        client.sendall(byte)
server = socket.create_server((sys.argv[1], {PORT}))
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""

# Prints what each server at argv[2:] calls itself, or why it does not; argv[1]: seconds for each.
CLIENT = f"""
import socket, sys
for address in sys.argv[2:]:
    try:
        with socket.create_connection((address, {PORT}), timeout=float(sys.argv[1])) as server:
            print(server.makefile().readline().strip())
    except OSError as error:
        print(error)
"""

# Prints the seconds for BYTES from the server at argv[1], and to it.
SPEED = f"""
import socket, sys, time
with socket.create_connection((sys.argv[1], {PORT})) as server:
    stream = server.makefile("rb")
    stream.readline()
    for direction in b"D", b"U":
        begin = time.monotonic()
        server.sendall(direction)
        if direction == b"D":
            stream.read({BYTES})
        else:
            server.sendall(bytes({BYTES}))
        stream.read(1)
        print(time.monotonic() - begin)
"""

# Sends a byte for each line that it reads, and tells when it is back; argv[1]: the server.
CONNECTION = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {PORT})) as server:
    stream = server.makefile("rb")
    stream.readline()
    while True:
        print("idle", flush=True)
        if not sys.stdin.readline():
            break
        server.sendall(b"x")
        stream.read(1)
"""

lab = other = None


def python(*words):
    return [sys.executable, "-c", *words]


def serve(where, *nodes, name="node"):
    for node in nodes:
        server = where.start(node, python(SERVER, where.addresses[node], f"{name} {node}"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        server.stdout.readline()


def ask(where, node, addresses, seconds=e2e.PATIENCE):
    code, out, err = where.execute(node, python(CLIENT, str(seconds), *addresses), seconds=2 * e2e.PATIENCE)
    return out.decode().splitlines() if code == 0 else err


def of_the_host():
    """What a lab might leave: network devices, named namespaces, namespaces' files."""
    found = [subprocess.run(words, stdout=subprocess.PIPE, check=False).stdout.decode().splitlines()
             for words in (["ip", "-o", "-br", "link"], ["ip", "netns"])]
    names = [re.split(r"[ @]", line)[0] for lines in found for line in lines]
    return set(names + [path for path in e2e.mounts_below(scratch())])


# In the place of dpkg-query: all packages that it is asked for are installed, but one.
ALL_BUT_ONE = """#!/bin/sh
for name; do case $name in -* | libspdlog-dev) ;; *) echo "installed $name" ;; esac; done
"""
# In the place of what installs or builds.
RECORDED = """#!/bin/sh
echo "${0##*/} $*" >>CALLS
exit 1
"""


def dev_lab(*words):
    return e2e.execute([f"{SOURCE}/dev/lab", "peers", *words])


# ---- tests


def packages():
    """dev/build with a package missing, also as root, who could install it."""
    path, calls, directory = scratch("programs"), f"{scratch()}/calls", f"{scratch()}/built"
    for name in "dpkg-query", "apt-get", "apt", "dpkg", "sudo", "autoreconf", "make":
        with open(f"{path}/{name}", "w", encoding="utf-8") as file:
            file.write(ALL_BUT_ONE if name == "dpkg-query" else RECORDED.replace("CALLS", calls))
        os.chmod(f"{path}/{name}", 0o755)
    code, out, err = e2e.execute([f"{SOURCE}/dev/build", "--dir", directory], env=e2e.environment(PATH=f"{path}:{os.environ['PATH']}"))
    equal((code, out), (1, b""), "dev/build where a package is missing fails", err)
    equal(re.findall(r"apt-get install .*", err), ["apt-get install --no-install-recommends libspdlog-dev"], "and names it and the command that installs it", err)
    equal((os.path.exists(calls), os.path.exists(directory)), (False, False), "nothing is installed or built")


def reach():
    for node in [*lab.nodes, "hub"]:
        equal(ask(lab, node, lab.addresses.values()), [f"node {other}" for other in lab.addresses], f"from node {node} all are reached")
    code, out, err = dev_lab("exec", lab.directory, "2", "--user", "nobody", "--", "sh", "-c", 'id -u; ip -o -4 addr; pwd; echo "$1"',
                             "sh", "one  word")
    words = out.decode()
    ok(code == 0 and words.startswith(NOBODY[1].split("=")[1] + "\n") and f" {lab.addresses[2]}/" in words and
       words.endswith(f"{os.getcwd()}\none  word\n"), "exec runs a user's command in the node's network, where it was called", words, err)
    equal(dev_lab("address", lab.directory, "2")[1].decode(), lab.addresses[2] + "\n", "address prints a node's address")
    code, out, err = dev_lab("exec", lab.directory, "4", "true")
    ok(code == 1 and "no node '4'" in err, "a node that is not there is an error", code, err)


def rate():
    for what, client, server in (("to the node, from the node", 1, "hub"), ("from the node, to the node", "hub", 1)):
        code, out, err = lab.execute(client, python(SPEED, lab.addresses[server]))
        speeds = [round(BYTES * 8e-6 / float(seconds), 1) for seconds in out.split()]
        ok(code == 0 and len(speeds) == 2 and max(speeds) < 3 * RATE, f"the rate holds: {what}", f"{speeds} Mbit/s", err)
    for wanted in (10 * RATE, 0, RATE):
        lab.set_rate(wanted)
        queues = [lab.execute(node, ["tc", "qdisc", "show", "dev", device])[1].decode() for node, device in ((2, "eth0"), ("hub", "node2"))]
        equal(re.findall(r" rate (\w+) ", "".join(queues)), [f"{wanted}Mbit"] * 2 if wanted else [], f"the rate becomes {wanted}", queues)
        equal(lab.status()["rate_mbit"], wanted, "and status tells it")


def two():
    """The second lab's nodes have not spoken to each other yet when one is cut off."""
    other.cut(2)
    serve(other, 2, name="other")
    lost = other.start(1, python(CLIENT, str(LOST), other.addresses[2]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE)
    serve(other, 1, name="other")
    equal(ask(other, "hub", [other.addresses[1]]), ["other 1"], "a second lab works beside the first")
    ok("other 1" not in ask(lab, 1, [other.addresses[1]], 1), "they do not reach each other")
    yield
    equal(e2e.finish(lost)[1], b"timed out\n", "also who never spoke to a node that is cut off meets silence")
    other.heal(2)
    equal(ask(other, 1, [other.addresses[2]]), ["other 2"], "until it is healed")


def cut():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    connection = lab.start(1, python(CONNECTION, lab.addresses[2]), **pipes)
    equal(connection.stdout.readline(), "idle\n", "a connection is there")
    lab.cut(2)
    lab.cut(2)
    equal(lab.status()["cut"], [2], "status tells who is cut off")
    print("x", file=connection.stdin, flush=True)
    for node, of, want in ((1, 2, "timed out"), (2, 1, "timed out"), (2, 2, "node 2"), (1, 3, "node 3")):
        equal(ask(lab, node, [lab.addresses[of]], 1 if want == "timed out" else e2e.PATIENCE), [want], f"node 2 is cut off: {node} asks {of}")
    equal((connection.poll(), select.select([connection.stdout], [], [], 0)[0]), (None, []), "the connection hangs")
    lab.heal(2)
    lab.heal(2)
    ok(select.select([connection.stdout], [], [], e2e.PATIENCE)[0], "it goes on when the node is healed")
    equal(ask(lab, 2, [lab.addresses[1]]), ["node 1"], "and new ones are made")
    e2e.end(connection)


def file_system():
    """What is mounted after the nodes were made, as tests do it."""
    name = "all nodes see the same PFS"
    if why := e2e.why_no_slowfs():
        skip(name, why)
        return
    with open(f"{scratch('data')}/file", "w", encoding="utf-8") as file:
        file.write("text")
    pfs = e2e.SlowFs(scratch("data"), scratch("mount"))
    texts = [lab.execute(node, ["cat", f"{pfs.mount}/file"])[1] for node in lab.nodes]
    equal((texts, pfs.counters()["open"]), ([b"text"] * len(lab.nodes), len(lab.nodes)), name)
    pfs.close()


def slurm():
    name = "Slurm runs a job on two nodes"
    if why := slurm_lab.why_no_slurm():
        skip(name, why)
        return
    cluster = slurm_lab.Cluster(peers=lab)
    cluster.up("--nodes", "2")
    want = [f"node{node} {lab.addresses[node]}" for node in (1, 2)]
    script = """echo "$SLURMD_NODENAME $(ip -4 -o addr show dev eth0 | sed "s/.*inet //; s,/.*,,")" """
    code, out, err = cluster.execute(["srun", "-N2", "sh", "-c", script])
    equal((code, sorted(out.decode().splitlines())), (0, want), f"{name}: srun", err)
    job = cluster.submit(["-N2"], f"srun sh -c '{script}'")
    equal((cluster.wait(job), sorted(cluster.output(job).decode().splitlines())), ("COMPLETED", want), f"{name}: sbatch")
    ok(wait_until(lambda: cluster.rows(job)), "it is in the database")
    cluster.down()


def interrupted():
    """`up` is ended while it makes the nodes: it removes them, and after SIGKILL `down` does."""
    for number, left in ((signal.SIGTERM, False), (signal.SIGKILL, True)):
        directory = f"{scratch('interrupted')}/{number.name}"
        up = e2e.start([f"{SOURCE}/dev/lab", "peers", "up", directory, "50"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        wait_until(lambda: os.path.exists(f"{directory}/net/3") or up.poll() is not None)
        os.killpg(up.pid, number)
        up.wait(e2e.PATIENCE)
        equal(os.path.exists(directory), left, f"an up that {number.name} ends leaves {'a part' if left else 'nothing'}", up.returncode)
        for again in ("", ", twice"):
            equal(dev_lab("down", directory)[0], 0, f"after {number.name}: down{again}")
        equal(os.listdir(scratch("interrupted")), [], "nothing is left")


def down():
    """The last test: of a lab that processes run in, and of one without."""
    yield
    daemon = lab.start(3, ["sleep", "1000"])
    deaf = lab.start(1, ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"], stdout=subprocess.PIPE)
    deaf.stdout.readline()
    for each in (lab, other):
        each.down()
        ok(not os.path.exists(each.directory) and not os.path.exists(each.directory + ".lock"), "down removes the directory")
    equal((daemon.wait(e2e.PATIENCE), deaf.wait(e2e.PATIENCE)), (-signal.SIGTERM, -signal.SIGKILL), "what ran in a node has ended")
    equal(dev_lab("down", lab.directory)[0], 0, "down without a lab is no error")
    code, out, _ = dev_lab("status", lab.directory)
    ok(code == 1 and out.startswith(b"down"), "status tells that it is down", out)
    equal(sorted(of_the_host() - before), [], "no device, namespace or mount is left")


why = why_no_peers()
if why:
    skip("nodes with networks of their own", why)
    e2e.main(packages)
before = of_the_host()
begin = time.monotonic()
lab, other = Peers(3, RATE), Peers(2, name="other")
print(f"# up: {time.monotonic() - begin:.1f} s")
ok(of_the_host() - before <= set(e2e.mounts_below(scratch())), "the labs are not seen in the host's network")
serve(lab, *lab.nodes, "hub")
e2e.main(packages, reach, rate, two, cut, file_system, slurm, interrupted, down)
