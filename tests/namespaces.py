"""Network namespaces, as machines on one network."""

import os
import shutil
import subprocess


class Hosts:
    """Network namespaces on one bridge, as machines on one network: 10.77.0.1 and so on."""

    def __init__(self, count: int, name: str = ""):
        """`name`: tells those of one program apart."""
        self.bridge = f"pwb{os.getpid() % 10000}{name}"
        self.names = [f"pw{os.getpid() % 10000}{name}-{host}" for host in range(count)]

    def __enter__(self) -> "Hosts":
        self.ip("link", "add", self.bridge, "type", "bridge")
        self.ip("link", "set", self.bridge, "up")
        for host, name in enumerate(self.names):
            self.ip("netns", "add", name)
            self.ip("link", "add", f"{name}x", "type", "veth", "peer", "name", "eth0", "netns", name)
            self.ip("link", "set", f"{name}x", "master", self.bridge, "up")
            self.ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            self.ip("-n", name, "link", "set", "eth0", "up")
            self.ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    @staticmethod
    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"


def namespaces_work() -> bool:
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    try:
        with Hosts(1):
            return True
    except subprocess.CalledProcessError:
        return False
