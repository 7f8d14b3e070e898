"""On which addresses processes listen."""

import psutil


def listening_addresses(root: int, *, descendants: bool = True) -> dict[str, set[str]]:
    """The listening TCP addresses of a process and its descendants: `{"command line (number)": {"127.0.0.1", ...}}`."""
    process = psutil.Process(root)
    found = {}
    for each in [process, *(process.children(recursive=True) if descendants else [])]:
        try:
            connections = each.net_connections("tcp")
            name = " ".join(each.cmdline())[:100]
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        # IPv6 sockets show an IPv4 address as ::ffff:127.0.0.1.
        addresses = {c.laddr.ip.removeprefix("::ffff:") for c in connections if c.status == psutil.CONN_LISTEN}
        if addresses:
            found[f"{name} ({each.pid})"] = addresses
    return found
