"""A configuration with a mistake: one line that says what, where, and the mend."""

from __future__ import annotations

import pytest

from iokeel.config.load import parse
from iokeel.errors import ConfigError

VM = '[[vm]]\nname = "a"\nsocket = "/a"\n'
RULE = '[[rules]]\nname = "a"\n'
OUTSIDE = (
    "is not a loopback address, and anybody may read metrics there; "
    "write 127.0.0.1 or [::1], or say by metrics_web_config who may read them"
)
SYNTAX = "write each key = value on a line of its own, and strings in quotes"
NAME = "is not a name; give 1 to 64 of the characters A-Z a-z 0-9 _ . -"
MESSAGES = [
    # Unknown keys
    ("[agent]\ntick_second = 1", ", [agent] tick_second: not known; did you mean 'tick_seconds'?"),
    ("[agnet]\nsocket = '/a'", ", agnet: not known; did you mean 'agent'?"),
    ("[[vms]]", ", vms: not known; did you mean 'vm'?"),
    ("[libvirt]\nurl = 'x'", ", [libvirt] url: not known; did you mean 'uri'?"),
    ("[hook]\nqqq = 1", ", [hook] qqq: not known; known: strict"),
    (
        '["[key]"]',
        ", '[key]': not known; known: agent, ceilings, cgroup, classes, curve, discover, fleet,"
        " history, hook, jobs, libvirt, policy, rules, storage, tenants, vm",
    ),
    ('[hook]\n"[key]" = 1', ", [hook] '[key]': not known; known: strict"),
    ('[tenants."[key]"]', f", [tenants] '[key]': '[key]' {NAME}"),
    ("[curve]\nreads = []", ", [curve] reads: not known; did you mean 'read'?"),
    ("[classes.gold]\nlimt = 1", ", [classes.gold] limt: not known; did you mean 'limit'?"),
    (
        "[classes.gold]\nburst-seconds = 1",
        ", [classes.gold] burst-seconds: not known; did you mean 'burst_seconds'?",
    ),
    ("[tenants.a]\nwieght = 1", ", [tenants.a] wieght: not known; did you mean 'weight'?"),
    # The typing error, and not the key that is missing for it.
    ('[[vm]]\nname = "a"\nsockt = "/a"', ", [[vm]] 1 sockt: not known; did you mean 'socket'?"),
    (VM + "clas = 'gold'", ", [[vm]] 1 clas: not known; did you mean 'class'?"),
    (
        VM + "[vm.drives.vda]\nlimitt = 1",
        ", [[vm]] 1, [vm.drives.vda] limitt: not known; did you mean 'limit'?",
    ),
    (
        '["a b"]\nx = 1',
        ", 'a b': not known; known: agent, ceilings, cgroup, classes, curve, discover, fleet,"
        " history, hook, jobs, libvirt, policy, rules, storage, tenants, vm",
    ),
    # Rules
    ("[policy]\nmeta = false", ", [policy] meta: not known; did you mean 'metadata'?"),
    (
        "[policy]\ntrust = ['nova.nam']",
        ", [policy] trust: {} is no fact, so it can't ever fit; did you mean 'nova.name'?".format(
            "'nova.nam'"
        ),
    ),
    ("[[rules]]\nclass = 'gold'", ", [[rules]] 1 name: is missing; add it"),
    ("[[rules]]\nname = 'a b'", f", [[rules]] 1 name: 'a b' {NAME}"),
    (RULE + RULE, ", [[rules]] 2 (a): another rule has this name; give each its own"),
    (RULE + "clas = 'gold'", ", [[rules]] 1 clas: not known; did you mean 'class'?"),
    (
        RULE + "when = {name = []}",
        ', [[rules]] 1 when name: an empty list, so it can\'t ever fit; write "*" for any text',
    ),
    (
        RULE + "when = {name = ['a', 5]}",
        ", [[rules]] 1 when name: ['a', 5] is neither a pattern nor a list of patterns; write"
        ' "io1.*", or ["io1.*", "io2.*"]',
    ),
    (
        RULE + "when = {'nova.flavour' = '*'}",
        ", [[rules]] 1 (a) when: 'nova.flavour' is no fact, so it can't ever fit; did you mean"
        " 'nova.flavor'?",
    ),
    (
        RULE + "when = {target = 'vda'}",
        ", [[rules]] 1 (a) when: target is a fact of a drive, so it can't ever fit; put it into"
        " [[rules.drives]] of this rule",
    ),
    (
        RULE + "[[rules.drives]]\nwhen = {readonly = 'on'}",
        ", [[rules]] 1 (a), [[rules.drives]] 1 when: readonly is yes or no, so 'on' can't ever fit;"
        " write yes or no",
    ),
    (
        RULE + "when = {'nova.name' = 'db*'}",
        ", [[rules]] 1 (a) when: the tenant decides on nova.name, and could choose a policy by it;"
        ' go by another fact, or write trust = ["nova.name"] under [policy]',
    ),
    (
        RULE + "tenant = '{one.name}'",
        ", [[rules]] 1 (a) tenant: the tenant decides on one.name, and could choose a policy by it;"
        ' go by another fact, or write trust = ["one.name"] under [policy]',
    ),
    (
        RULE + "tenant = '{nova.project}/{nova.user}'",
        ", [[rules]] 1 (a) tenant: '{nova.project}/{nova.user}' is not a name; give 1 to 64 of the"
        " characters A-Z a-z 0-9 _ . -, and {fact}",
    ),
    (
        RULE + "class = 'golld'",
        ", [[rules]] 1 (a) class: class 'golld' is not known; did you mean 'gold'?",
    ),
    (
        RULE + "class = 'gold'\npolicy = 'none'",
        ', [[rules]] 1 (a): policy = "none" leaves guests alone, but it gives more; remove what it'
        " gives, or policy",
    ),
    (
        RULE + "policy = 'all'",
        ", [[rules]] 1 policy: 'all' is not known; give 'none'",
    ),
    (
        RULE + "limit = 5\nburst = 4",
        ", [[rules]] 1 (a): burst 4 is below limit 5; raise the burst or leave it out",
    ),
    (
        RULE + "burst_seconds = 4",
        ", [[rules]] 1 (a): burst_seconds without a limit; give a limit, too",
    ),
    (
        RULE + "[[rules.drives]]\nburst = 4",
        ", [[rules]] 1 (a), [[rules.drives]] 1: burst 4 without a limit; give a limit",
    ),
    (
        RULE + "[[rules.drives]]\nlimitt = 4",
        ", [[rules]] 1, [[rules.drives]] 1 limitt: not known; did you mean 'limit'?",
    ),
    (
        RULE + "[[rules.drives]]\nlimit = 'platfrm'",
        ", [[rules]] 1, [[rules.drives]] 1 limit: 'platfrm' is not a whole number; write it like"
        ' 500, or "platform" for what the platform sells',
    ),
    (
        RULE + "[[rules.drives]]\nburst = 'platform'\nlimit = 5",
        ", [[rules]] 1 (a), [[rules.drives]] 1: burst is platform, and limit isn't; let both be it",
    ),
    (
        RULE + "[[rules.drives]]\nlimit = {per_gb = 0}",
        ", [[rules]] 1, [[rules.drives]] 1 limit: per_gb is 0; give more than 0, and at most"
        " 100000000",
    ),
    (
        RULE + "[[rules.drives]]\nlimit = {per_gib = 3}",
        ", [[rules]] 1, [[rules.drives]] 1 limit: {'per_gib': 3} isn't a figure by size; write it"
        " like {per_gb = 3, least = 300, most = 20000}",
    ),
    (
        RULE + "[[rules.drives]]\nlimit = {per_gb = 3, least = 9, most = 8}",
        ", [[rules]] 1, [[rules.drives]] 1 limit: least 9 is above most 8; lower it, or raise the"
        " other",
    ),
    # Ceilings
    ("[ceilings.all]", ", [ceilings.all] limit: is missing; add it"),
    (
        "[ceilings.all]\nlimit = 5\nmost = 6",
        ", [ceilings.all] most: not known; known: burst, burst_seconds, domains, job_bps,"
        " latency_target_ms, limit, reservation, tenant, weight",
    ),
    (
        "[ceilings.all]\nlimit = 5\nburst = 4",
        ", [ceilings.all]: burst 4 is below limit 5; raise the burst or leave it out",
    ),
    (
        "[ceilings.all]\nlimit = 5\nreservation = 6",
        ", [ceilings.all]: limit 5 is below reservation 6; raise the limit or lower the"
        " reservation",
    ),
    (
        "[ceilings.all]\nlimit = 0",
        ", [ceilings.all]: limit is 0; give 1 to 100000000, or leave it out",
    ),
    ("[ceilings.all]\nlimit = 5\nweight = 0", ", [ceilings.all]: weight is 0; give 1 to 10000"),
    (
        "[ceilings.all]\nlimit = 5\njob_bps = 5",
        ", [ceilings.all] job_bps: is 5; give at least 65536",
    ),
    (
        "[ceilings.all]\nlimit = 5\ndomains = [5]",
        ", [ceilings.all] domains name 1: 5 is not a string; write it in quotes",
    ),
    # The fleet
    ("[fleet]", ", [fleet] etcd: is missing; add it"),
    (
        "[fleet]\netcd = ['http://a:1']\nhots = 'a'",
        ", [fleet] hots: not known; did you mean 'host'?",
    ),
    (
        "[fleet]\netcd = ['etcd1']",
        ", [fleet] etcd 'etcd1': is not a member's URL; write https://HOST:2379",
    ),
    (
        "[fleet]\netcd = ['https://a:0']",
        ", [fleet] etcd 'https://a:0': is not a member's URL; write https://HOST:2379",
    ),
    ("[fleet]\netcd = [5]", ", [fleet] etcd URL 1: 5 is not a string; write it in quotes"),
    (
        "[fleet]\netcd = ['https://a:1']\nuser = ''\npassword_file = '/p'",
        ", [fleet] user: is empty; give a name, or leave it out",
    ),
    (
        "[fleet]\netcd = ['https://a:1']\nprefix = '//'",
        ", [fleet] prefix '//': is not a prefix; write one that begins and ends with a slash, such"
        " as /iokeel/",
    ),
    (
        "[fleet]\netcd = ['http://a:1']\nkey = '/k'",
        ", [fleet] etcd: has certificates, but no https; write https://",
    ),
    (
        "[fleet]\netcd = ['http://a:1']\nhost = 'a'\n[agent]\ntick_seconds = 5",
        ", [agent] tick_seconds: is 5, but a host of the fleet has to lower limits in time; "
        "give at most 2",
    ),
    # Wrong types
    ("agent = 1", ", agent: 1 is not a table; write it as a [table] of its own"),
    ("[[agent]]", ", agent: [{}] is not a table; write it as a [table] of its own"),
    ("[agent]\nsocket = 5", ", [agent] socket: 5 is not a string; write it in quotes"),
    (
        "[agent]\ntick_seconds = '1'",
        ", [agent] tick_seconds: '1' is not a number; write it in digits, without quotes",
    ),
    (
        "[agent]\ntick_seconds = true",
        ", [agent] tick_seconds: True is not a number; write it in digits, without quotes",
    ),
    (
        "[agent]\ntick_seconds = nan",
        ", [agent] tick_seconds: nan is not a finite number; write it like 2.5",
    ),
    (
        "[hook]\nstrict = 'yes'",
        ", [hook] strict: 'yes' is not true or false; write true or false, without quotes",
    ),
    (
        "[libvirt]\nenabled = 1",
        ", [libvirt] enabled: 1 is not true or false; write true or false, without quotes",
    ),
    (
        "[classes.gold]\nlimit = '5'",
        ", [classes.gold] limit: '5' is not a whole number; "
        "write it like 500, without quotes or fraction",
    ),
    (
        "[classes.gold]\nlimit = 5.0",
        ", [classes.gold] limit: 5.0 is not a whole number; "
        "write it like 500, without quotes or fraction",
    ),
    (
        "[classes.gold]\nlimit = true",
        ", [classes.gold] limit: True is not a whole number; "
        "write it like 500, without quotes or fraction",
    ),
    ("classes.gold = 5", ", [classes] gold: 5 is not a table; write it as a [table] of its own"),
    (
        "[vm]\nname = 'a'",
        ", vm: {'name': 'a'} is not a list; write a curve as [[size, cost], ...], "
        'drives as ["VM/DRIVE", ...], devices as ["/dev/NAME", ...], etcd as ["URL", ...], and '
        "[[vm]], [[discover]] and [[rules]] for each",
    ),
    # Discover
    ("[[discover]]", ", [[discover]] 1 sockets: is missing; add it"),
    ("[[discover]]\nsocket = '/a*'", ", [[discover]] 1 socket: not known; did you mean 'sockets'?"),
    (
        "[[discover]]\nsockets = '/a'",
        ", [[discover]] 1 sockets: '/a' doesn't have one *, which stands for the name of a VM;"
        " write it like /run/qemu-server/*.qmp",
    ),
    (
        "[[discover]]\nsockets = '/*/[b]'",
        ", [[discover]] 1 sockets: '/*/[b]' doesn't have one *, which stands for the name of a VM;"
        " write it like /run/qemu-server/*.qmp",
    ),
    (
        "[[discover]]\nsockets = '/a*'\nformat = 'proxmx'",
        ", [[discover]] 1 format: 'proxmx' is not known; give 'proxmox'",
    ),
    (
        "[[discover]]\nsockets = '/a*'\nfacts = '/b/{name}'",
        ', [[discover]] 1 facts: lacks its format; write format = "proxmox", or remove it',
    ),
    (
        "[[discover]]\nsockets = '/a*'\nformat = 'proxmox'\nfacts = '/b'",
        ", [[discover]] 1 facts: '/b' is the same file for all VMs; write {name} where it has the"
        " name of a VM",
    ),
    ("vm = [5]", ", [[vm]] 1: 5 is not a table; write it as a [table] of its own"),
    (VM + "drives = 5", ", [[vm]] 1 drives: 5 is not a table; write it as a [table] of its own"),
    # Values
    ("[agent]\ntick_seconds = 0.1", ", [agent] tick_seconds: is 0.1; give at least 0.2"),
    ("[agent]\ntick_seconds = 11", ", [agent] tick_seconds: is 11; give at most 10"),
    (
        "[agent]\nlog_level = 'loud'",
        ", [agent] log_level: 'loud' is not known; give 'debug', 'info', 'warning' or 'error'",
    ),
    (
        "[agent]\nsocket = 'agent.sock'",
        ", [agent] socket: 'agent.sock' is not an absolute path; write it from / on",
    ),
    (
        f"[agent]\nsocket = '/{'x' * 107}'",
        ", [agent] socket: 108 bytes are too many for a unix socket's path; "
        "give a path of at most 107 bytes",
    ),
    (
        '[agent]\nstate_dir = "/a\\u0000"',
        ", [agent] state_dir: '/a\\x00' is not an absolute path; write it from / on",
    ),
    (
        "[libvirt]\nuri = 'x'",
        ", [libvirt] uri: 'x' is not a libvirt URI; write it like qemu:///system",
    ),
    *(
        (
            f"[libvirt]\nuri = '{scheme}://{host}/system'",
            f", [libvirt] uri: '{scheme}://{host}/system' names a host, but iokeel looks at the"
            " disks, processes and cgroups of the host that it runs on; run the agent on"
            f" {host}, and write it like qemu:///system there",
        )
        for scheme, host in (("qemu+ssh", "hv2"), ("qemu+tls", "root@hv2:16514"), ("qemu", "hv2"))
    ),
    *(
        (f"[agent]\nmetrics_address = '{address}'", f", [agent] metrics_address: {message}")
        for address, message in [
            ("0.0.0.0:9632", f"0.0.0.0 {OUTSIDE}"),
            ("[::]:9632", f":: {OUTSIDE}"),
            ("192.0.2.1:9632", f"192.0.2.1 {OUTSIDE}"),
            ("localhost:1", "'localhost' is not an IP address; write 127.0.0.1 or [::1]"),
            ("127.0.0.1", "'127.0.0.1' is not an address and port; write it like 127.0.0.1:9632"),
            ("::1:9632", "'::1:9632' is not an address and port; write it like 127.0.0.1:9632"),
            (":9632", "'' is not an IP address; write 127.0.0.1 or [::1]"),
            (
                "127.0.0.1:0",
                "'127.0.0.1:0' is not an address and port; write it like 127.0.0.1:9632",
            ),
            (
                "127.0.0.1:65536",
                "'127.0.0.1:65536' is not an address and port; write it like 127.0.0.1:9632",
            ),
        ]
    ),
    (
        "[agent]\nmetrics_web_config = '/web.yml'",
        ", [agent] metrics_web_config: is of no use without metrics_address; give that, too",
    ),
    # Policies
    (
        "[classes.gold]\nlimit = 5\nreservation = 6",
        ", [classes.gold]: limit 5 is below reservation 6; "
        "raise the limit or lower the reservation",
    ),
    (
        "[classes.gold]\nlimit = 5\nburst = 4",
        ", [classes.gold]: burst 4 is below limit 5; raise the burst or leave it out",
    ),
    ("[classes.gold]\nburst = 4", ", [classes.gold]: burst 4 without a limit; give a limit"),
    (
        "[classes.gold]\nlimit = 0",
        ", [classes.gold]: limit is 0; give 1 to 100000000, or leave it out",
    ),
    (
        "[classes.gold]\nburst_seconds = -1",
        ", [classes.gold]: burst_seconds is -1; give 0 to 3600",
    ),
    (
        "[classes.gold]\nlatency_target_ms = -1",
        ", [classes.gold]: latency_target_ms is -1.0; give 0.001 to 60000, or leave it out",
    ),
    (
        f"[classes.gold]\nlimit = {10**16}",
        ", [classes.gold] limit: is 10000000000000000; give at most 1000000000000000",
    ),
    (
        f"[classes.gold]\nlimit = 0x{'f' * 9000}",
        ", [classes.gold] limit: is <int>; give at most 1000000000000000",
    ),
    (
        "[classes.gold]\nbudget = 'both'",
        ", [classes.gold] budget: 'both' is not known; give 'shared' or 'separate'",
    ),
    ('[classes."a b"]', f", [classes] 'a b': 'a b' {NAME}"),
    ("[tenants.a]\nweight = 0", ", [tenants.a]: weight is 0; give 1 to 10000"),
    # Storage and cgroups
    (
        "[storage.a]\ncapcity = 5",
        ", [storage.a] capcity: not known; did you mean 'capacity'?",
    ),
    ("[cgroup]\nmargn = 5", ", [cgroup] margn: not known; did you mean 'margin'?"),
    ("[storage.a]\ncapacity = 0", ", [storage.a] capacity: is 0; give at least 1"),
    ("[storage.a]\ncapacity = -5", ", [storage.a] capacity: is -5; give at least 1"),
    (
        "[storage.a]\ncapacity = 1.5",
        ", [storage.a] capacity: 1.5 is not a whole number; "
        "write it like 500, without quotes or fraction",
    ),
    (
        f"[storage.a]\ncapacity = {10**9}",
        ", [storage.a] capacity: is 1000000000; give at most 100000000",
    ),
    (
        "[storage.a]\nlatency_target_ms = 0",
        ", [storage.a] latency_target_ms: is 0; give at least 0.001",
    ),
    ("[storage.a]\nleast_ratio = 2", ", [storage.a] least_ratio: is 2; give at most 1"),
    ("[storage.a]\nleast_ratio = 0", ", [storage.a] least_ratio: is 0; give at least 0.01"),
    ("[storage.a]\nmost_ratio = 0.5", ", [storage.a] most_ratio: is 0.5; give at least 1"),
    (
        "[storage.a]\ndevice = 'sda'",
        ", [storage.a] device: 'sda' is not an absolute path; write it from / on",
    ),
    (
        '[storage.a]\nsource = "nbd:a\\u0000b"',
        ", [storage.a] source: 'nbd:a\\x00b' is not a network storage; write it like rbd:pool, "
        "nbd:host:10809 or iscsi:host:3260/iqn.2001-01.com.example:t",
    ),
    (
        '[curve]\nread = [["4k", 1e-320]]',
        ", [curve] read point 1: is 1e-320; give at least 1e-12",
    ),
    (
        "[storage.a]\nsource = '/dev/sda'",
        ", [storage.a] source: '/dev/sda' is not a network storage; write it like rbd:pool, "
        "nbd:host:10809 or iscsi:host:3260/iqn.2001-01.com.example:t",
    ),
    (
        "[storage.a]\ndrives = ['db1']",
        ", [storage.a] drives drive 1: 'db1' is not a drive; write VM/DRIVE, such as \"web*/vdb\"",
    ),
    (
        "[storage.a]\ndrives = 'db1/vda'",
        ", [storage.a] drives: 'db1/vda' is not a list; write a curve as [[size, cost], ...], "
        'drives as ["VM/DRIVE", ...], devices as ["/dev/NAME", ...], etcd as ["URL", ...], and '
        "[[vm]], [[discover]] and [[rules]] for each",
    ),
    (
        "[storage.a]\ndrives = ['/vda']",
        ", [storage.a] drives drive 1: '/vda' is not a drive; write VM/DRIVE, such as \"web*/vdb\"",
    ),
    (
        "[storage.a]\ndevices = ['sd*']",
        ", [storage.a] devices device 1: 'sd*' is not an absolute path; write it from / on",
    ),
    (
        VM + "[vm.drives.'a b']",
        ", [[vm]] 1, [vm.drives.'a b']: 'a b' is not a drive's name; give the name that `iokeel"
        " stats` shows",
    ),
    (
        "[storage.a]\ncurve_read = []",
        ", [storage.a] curve_read: 0 points; give 1 to 32",
    ),
    (
        "[storage.a]\ncurve_write = [['4k', 0]]",
        ", [storage.a] curve_write point 1: is 0; give at least 1e-12",
    ),
    (
        "[storage.a]\ndevice = '/dev/sda'\n[storage.b]\ndevice = '/dev/sda'",
        ", [storage.b] device: '/dev/sda' already belongs to [storage.a];"
        " give each storage its own",
    ),
    ('[storage."a b"]', f", [storage] 'a b': 'a b' {NAME}"),
    ("[jobs]\nbsp = 5", ", [jobs] bsp: not known; did you mean 'bps'?"),
    ("[history]\nkeep_days = -1", ", [history] keep_days: is -1; give at least 0"),
    ("[history]\nkeep_days = 1001", ", [history] keep_days: is 1001; give at most 1000"),
    ("[history]\nkeep = 7", ", [history] keep: not known; did you mean 'keep_days'?"),
    (
        '[history]\nkeep_days = "7d"',
        ", [history] keep_days: '7d' is not a whole number; write it like 500, without quotes or"
        " fraction",
    ),
    ("[jobs]\nbps = 0", ", [jobs] bps: is 0; give at least 65536"),
    (
        "[jobs]\nbps = 1e8",
        ", [jobs] bps: 100000000.0 is not a whole number; write it like 500, without quotes or"
        " fraction",
    ),
    (VM + "job_bps = -1", ", [[vm]] 1 job_bps: is -1; give at least 65536"),
    ("[cgroup]\nmargin = 0.9", ", [cgroup] margin: is 0.9; give at least 1"),
    # VMs
    ("[[vm]]\nname = 'a'", ", [[vm]] 1 socket: is missing; add it"),
    ("[[vm]]\nname = 'a/b'\nsocket = '/a'", f", [[vm]] 1 name: 'a/b' {NAME}"),
    (
        VM + "class = 'gld'",
        ", [[vm]] 1: class 'gld' is not known; give one that is: bronze, gold, silver",
    ),
    (
        VM + "[vm.drives.vda]\nclass = 'gld'",
        ", [[vm]] 1, [vm.drives.vda]: class 'gld' is not known; "
        "give one that is: bronze, gold, silver",
    ),
    (
        VM + "class = 'silver'\n[vm.drives.vda]\nreservation = 5000",
        ", [[vm]] 1, [vm.drives.vda]: limit 4000 is below reservation 5000; "
        "raise the limit or lower the reservation",
    ),
    (
        VM + VM.replace("/a", "/b"),
        ", [[vm]] 2 name: 'a' is another VM's name already; give each VM its own",
    ),
    (
        VM + VM.replace('"a"', '"b"').replace("/a", "/./a"),
        ", [[vm]] 2 socket: '/a' is another VM's socket already; give each VM its own",
    ),
    # Curves
    (
        "[curve]\nread = [['4q', 1]]",
        ", [curve] read point 1: size '4q' is not a size; give bytes, or write it like 4k or 1m",
    ),
    (
        "[curve]\nread = [['4k', 1], 5]",
        ', [curve] read point 2: 5 is not a point; write [size, cost], such as ["4k", 1.0]',
    ),
    ("[curve]\nread = [['4k', 0]]", ", [curve] read point 1: is 0; give at least 1e-12"),
    ("[curve]\nread = [['0k', 1]]", ", [curve] read point 1: is 0; give more than 0"),
    (
        "[curve]\nread = [['2g', 1]]",
        ", [curve] read point 1: is 2147483648; give at most 1073741824",
    ),
    (
        "[curve]\nread = [['4k', inf]]",
        ", [curve] read point 1: inf is not a finite number; write it like 2.5",
    ),
    ("[curve]\nread = []", ", [curve] read: 0 points; give 1 to 32"),
    (
        "[curve]\nwrite = [['8k', 1], ['4k', 2]]",
        ", [curve] write: size 4096 after 8192; give sizes in ascending order",
    ),
    (
        "[curve]\nwrite = [['4k', 2], ['8k', 1]]",
        ", [curve] write: cost falls from 2 at 4096 to 1 at 8192; costs must not fall",
    ),
    # Not TOML
    (
        "[agent]\nsocket",
        f", line 2: not TOML, Expected '=' after a key in a key/value pair; {SYNTAX}",
    ),
    ("\n\nx = = 1", f", line 3, column 5: not TOML, Invalid value; {SYNTAX}"),
    (
        "[hook]\nstrict = true\nstrict = true\n",
        f", line 3, column 14: not TOML, Cannot overwrite a value; {SYNTAX}",
    ),
    (
        f"x = {'9' * 5000}",
        ": can't be read as TOML; shorten the numbers and flatten the lists",
    ),
    (
        f"x = {'[' * 5000}",
        ": can't be read as TOML; shorten the numbers and flatten the lists",
    ),
    (b"[hook]\nx = '\xff'", ", line 2: not UTF-8; save it as UTF-8"),
]


def said(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(ConfigError) as caught:
        parse(data, "agent.toml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert caught.value.mend
    return str(caught.value)


@pytest.mark.parametrize(("text", "message"), MESSAGES, ids=[m[:60] for _, m in MESSAGES])
def test_what_is_wrong_is_said_in_a_line_with_the_mend(text: str | bytes, message: str) -> None:
    assert said(text) == f"agent.toml{message}"
