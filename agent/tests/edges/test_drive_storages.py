"""Which storage drives are on, while VMs come, change and go, and filesystems hang."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from iokeel.config.load import parse
from iokeel.config.settings import StorageConfig
from iokeel.core.values.counters import DriveId
from iokeel.core.values.storage import Place
from iokeel.host.block_devices import StoragePaths
from iokeel.host.process import Process
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.running import storages
from iokeel.running.storages import DriveStorages
from testing.waiting import until

SDA, SDB = Place("sda", "8:0"), Place("sdb", "8:16")
LOOP, LV = Place("loop0", "7:0"), Place("dm-1", "253:1")
A_MINUTE_S = 60.0


class Paths(StoragePaths):
    """Knows the storages of some paths. Those in `dead` are not answered until `answer` is set."""

    def __init__(self, known: dict[str, tuple[Place, ...]]) -> None:
        super().__init__()
        self.known = known
        self.dead: set[str] = set()
        self.answer = threading.Event()
        self.asked: list[str] = []

    def places(self, source: str, by: Process | None = None) -> tuple[Place, ...]:
        self.asked.append(source)
        if source in self.dead:
            self.answer.wait(A_MINUTE_S)
        return self.known.get(source) or ((Place(source),) if ":" in source else ())

    def mount_point(self, path: str) -> str:
        return "/nfs" if path.startswith("/nfs/") else "/"


@pytest.fixture
def paths() -> Paths:
    return Paths(
        {
            "/a": (SDA,),
            "/b": (SDB,),
            "/lv": (LV, SDA),
            "/dev/lv": (LV, SDA),
            "/dev/sdb": (SDB,),
            "/loop": (LOOP, SDA),
            "/dev/loop0": (LOOP, SDA),
            "/nfs/1": (Place("nfs:filer:/x"),),
            "/nfs/2": (Place("nfs:filer:/x"),),
        }
    )


def vms(**drives: str) -> dict[str, VmInfo]:
    """Return VMs with one drive each, vda, by name."""
    return {name: VmInfo(name, {"vda": DriveInfo("vda", path)}) for name, path in drives.items()}


def configured(text: str) -> dict[str, StorageConfig]:
    return dict(parse(text.encode(), "agent.toml").storages)


def told(found: DriveStorages, *names: str) -> list[str | None]:
    return [found.of(DriveId(name, "vda")) for name in names]


async def test_drives_are_on_what_they_share(paths: Paths) -> None:
    found = DriveStorages({}, lambda: paths)
    await found.follow(vms(one="/a", two="/lv", three="/b", four="rbd:x", five="/gone"), A_MINUTE_S)
    assert told(found, "one", "two", "three", "four", "five") == [
        "sda", "sda", "sdb", "rbd:x", None,
    ]  # fmt: skip
    assert found.of(DriveId("six", "vda")) is None
    assert found.devices == {"sda": SDA, "sdb": SDB}


async def test_the_devices_that_requests_come_to_are_told(paths: Paths) -> None:
    found = DriveStorages(configured("[storage.x]\ndrives = ['*/vda']"), lambda: paths)
    await found.follow(vms(one="/a", two="/lv", net="rbd:x", gone="/gone"), A_MINUTE_S)
    assert [found.devices_of(DriveId(name, "vda")) for name in ("one", "two", "net", "gone")] == [
        ("8:0",), ("253:1", "8:0"), (), None,
    ]  # fmt: skip
    assert found.devices_of(DriveId("six", "vda")) is None


async def test_the_images_beneath_a_drives_own_count_for_its_devices_alone(paths: Paths) -> None:
    found = DriveStorages({}, lambda: paths)
    beneath = {
        "both": ("/b", "/lv"), "net": ("rbd:x",), "same": ("/a",), "lost": ("/b", ""),
        "gone": ("/gone",),
    }  # fmt: skip
    above = vms(**dict.fromkeys(beneath, "/a"))
    on = {name: DriveInfo("vda", "/a", beneath=images) for name, images in beneath.items()}
    known = {name: replace(vm, drives={"vda": on[name]}) for name, vm in above.items()}
    await found.follow(known, A_MINUTE_S)
    assert [found.devices_of(DriveId(name, "vda")) for name in beneath] == [
        ("8:0", "8:16", "253:1"), ("8:0",), ("8:0",), None, None,
    ]  # fmt: skip
    assert told(found, *beneath) == ["sda"] * 5
    assert found.devices == {"sda": SDA}
    await found.follow(above, A_MINUTE_S)  # a block job has merged them
    assert found.devices_of(DriveId("both", "vda")) == ("8:0",)


async def test_the_device_of_a_storage_is_the_one_that_is_said(paths: Paths) -> None:
    text = "[storage.x]\ndevice = '/dev/loop0'\ndrives = ['*/vda']"
    found = DriveStorages(configured(text), lambda: paths)
    await found.follow(vms(one="/loop", two="/a"), A_MINUTE_S)
    assert told(found, "one", "two") == ["x", "x"]
    assert found.devices == {"x": LOOP}


async def test_a_drive_without_a_path_has_no_storage(paths: Paths) -> None:
    found = DriveStorages({}, lambda: paths)
    await found.follow({"one": VmInfo("one", {"vda": DriveInfo("vda")})}, A_MINUTE_S)
    assert told(found, "one") == [None]


async def test_a_vm_is_looked_at_again_only_when_its_drives_change(paths: Paths) -> None:
    found = DriveStorages({}, lambda: paths)
    running = vms(one="/a", two="/lv")
    await found.follow(running, A_MINUTE_S)
    assert sorted(paths.asked) == ["/a", "/lv"]
    limited = {**running, "one": replace(running["one"], drives=dict(running["one"].drives))}
    for _ in range(3):
        await found.follow(running, A_MINUTE_S)
        await found.follow(limited, A_MINUTE_S)
    assert sorted(paths.asked) == ["/a", "/lv"]
    await found.follow({**limited, **vms(one="/b")}, A_MINUTE_S)
    assert sorted(paths.asked) == ["/a", "/b", "/lv"]
    assert told(found, "one", "two") == ["sdb", "sda"]


async def test_a_vm_that_is_gone_is_forgotten(paths: Paths) -> None:
    found = DriveStorages({}, lambda: paths)
    await found.follow(vms(one="/a", two="/b"), A_MINUTE_S)
    await found.follow(vms(two="/b"), A_MINUTE_S)
    assert told(found, "one", "two") == [None, "sdb"]
    assert found.devices == {"sdb": SDB}
    await found.follow({}, A_MINUTE_S)
    assert found.devices == {}


async def test_what_is_not_found_is_looked_at_again(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "RECHECK_S", 0.0)
    found = DriveStorages({}, lambda: paths)
    running = vms(one="/new", two="/a")
    await found.follow(running, A_MINUTE_S)
    assert told(found, "one", "two") == [None, "sda"]
    paths.known["/new"] = (SDB,)
    await found.follow(running, A_MINUTE_S)
    assert told(found, "one", "two") == ["sdb", "sda"]


async def test_a_volume_that_moves_beneath_its_guest_is_found_where_it_is(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "RECHECK_S", 0.0)
    found = DriveStorages({}, lambda: paths)
    running = vms(one="/lv")
    await found.follow(running, A_MINUTE_S)
    assert found.devices_of(DriveId("one", "vda")) == ("253:1", "8:0")
    paths.known["/lv"] = (LV, SDB)
    await found.follow(running, A_MINUTE_S)
    await until(lambda: told(found, "one") == ["sdb"])
    assert found.devices_of(DriveId("one", "vda")) == ("253:1", "8:16")
    paths.known["/lv"] = ()  # an image that was removed
    asked = len(paths.asked)
    await found.follow(running, A_MINUTE_S)
    await until(lambda: len(paths.asked) > asked and not found._looking)
    assert told(found, "one") == ["sdb"]
    assert found.devices_of(DriveId("one", "vda")) == ("253:1", "8:16")


async def test_a_known_path_that_hangs_delays_no_tick(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "RECHECK_S", 0.0)
    found = DriveStorages({}, lambda: paths)
    running = vms(one="/nfs/1")
    await found.follow(running, A_MINUTE_S)
    paths.dead = {"/nfs/1"}
    async with asyncio.timeout(A_MINUTE_S / 2):
        await found.follow(running, A_MINUTE_S)
    assert told(found, "one") == ["nfs:filer:/x"]
    paths.answer.set()


async def test_known_paths_that_hang_cost_one_thread_and_one_look_each(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "RECHECK_S", 0.0)
    filer = Place("nfs:filer:/x")
    images = {f"vm{number}": f"/nfs/{number}/disk" for number in range(20)}
    paths.known |= dict.fromkeys(images.values(), (filer,))
    found = DriveStorages({}, lambda: paths)
    running = vms(**images)
    await found.follow(running, A_MINUTE_S)
    monkeypatch.setattr(storages, "_PATIENCE_S", 0.02)
    paths.dead = set(images.values())
    paths.asked.clear()
    for _ in range(5):
        await found.follow(running, A_MINUTE_S)
        await asyncio.sleep(0.1)
    assert len(paths.asked) == 1
    monkeypatch.setattr(storages, "RECHECK_S", A_MINUTE_S)
    await found.follow(running, A_MINUTE_S)
    paths.answer.set()
    await until(lambda: not found._looking)
    assert len(paths.asked) <= 1 + len(images)


async def test_a_path_that_hangs_delays_nothing(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "_PATIENCE_S", 0.05)
    paths.dead = {"/nfs/1"}
    found = DriveStorages({}, lambda: paths)
    running = vms(one="/nfs/1", two="/nfs/2", three="/a")
    await found.follow(running, 0.0)
    assert told(found, "one") == [None]  # it didn't wait
    await until(lambda: told(found, "two", "three") == ["nfs:filer:/x", "sda"])
    assert told(found, "one") == [None]
    paths.answer.set()
    await until(lambda: told(found, "one") == ["nfs:filer:/x"])


async def test_a_mount_that_hangs_costs_two_threads_and_no_more(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(storages, "RECHECK_S", 0.0)
    paths.dead = {f"/nfs/{i}" for i in range(20)}
    found = DriveStorages({}, lambda: paths)
    running = vms(**{f"vm{i}": f"/nfs/{i}" for i in range(20)}, other="/a")
    for _ in range(5):
        await found.follow(running, A_MINUTE_S)
    assert len([path for path in paths.asked if path in paths.dead]) == 2
    await until(lambda: told(found, "vm1", "other") == [None, "sda"])
    paths.answer.set()
    await until(lambda: not any(found._stuck.values()))
    await found.follow(running, A_MINUTE_S)
    await until(lambda: told(found, "vm1", "vm2") == ["nfs:filer:/x", "nfs:filer:/x"])


async def test_a_link_to_a_mount_that_hangs_keeps_no_other_folder_from_being_found(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "_PATIENCE_S", 0.02)
    paths.dead = {f"/link/{i}" for i in range(3)}  # by their names they are on "/"
    found = DriveStorages({}, lambda: paths)
    running = vms(**{f"vm{i}": f"/link/{i}" for i in range(3)}, one="/a")
    await found.follow(running, A_MINUTE_S)
    await until(lambda: told(found, "one") == ["sda"])
    await found.follow(running | vms(two="/b"), A_MINUTE_S)
    await until(lambda: told(found, "two") == ["sdb"])
    assert len([path for path in paths.asked if path in paths.dead]) == 2
    paths.answer.set()


async def test_a_qemu_that_names_many_folders_that_hang_costs_eight_threads_and_no_other_storage(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "_PATIENCE_S", 0.02)
    monkeypatch.setattr(storages, "RECHECK_S", 0.0)
    paths.dead = {f"/link/{i}/x" for i in range(100)}
    drives = {f"d{i}": DriveInfo(f"d{i}", path) for i, path in enumerate(sorted(paths.dead))}
    evil = {"evil": VmInfo("evil", drives, process=Process(7, 70))}
    found = DriveStorages({}, lambda: paths)
    for _ in range(3):
        await found.follow(evil, A_MINUTE_S)
    assert len([path for path in paths.asked if path in paths.dead]) == 8
    one = VmInfo("one", {"vda": DriveInfo("vda", "/a")}, process=Process(8, 80))
    await found.follow(evil | {"one": one}, A_MINUTE_S)
    await until(lambda: told(found, "one") == ["sda"])
    paths.answer.set()
    await until(lambda: not found._stuck_by.total())


async def test_all_qemus_together_cost_sixty_four_threads_that_hang_at_most(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "_PATIENCE_S", 0.02)
    paths.dead = {f"/link/{i}/x" for i in range(200)}
    running = {
        f"vm{i}": VmInfo(f"vm{i}", {"vda": DriveInfo("vda", path)}, process=Process(i, 70))
        for i, path in enumerate(sorted(paths.dead), 1)
    }
    found = DriveStorages({}, lambda: paths)
    await found.follow(running, A_MINUTE_S)
    assert len([path for path in paths.asked if path in paths.dead]) == 64
    one = VmInfo("one", {"vda": DriveInfo("vda", "/nfs/1")}, process=Process(999, 80))
    await found.follow(running | {"one": one}, A_MINUTE_S)
    await until(lambda: told(found, "one") == ["nfs:filer:/x"])  # on another mount
    paths.answer.set()


async def test_a_drive_keeps_its_storage_while_its_mount_hangs(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = DriveStorages({}, lambda: paths)
    await found.follow(vms(one="/nfs/1"), A_MINUTE_S)
    monkeypatch.setattr(storages, "_PATIENCE_S", 0.02)
    paths.dead = {"/nfs/1", "/nfs/2"}
    one = vms(one="/nfs/1")["one"]
    more = replace(one, drives={**one.drives, "vdb": DriveInfo("vdb", "/nfs/2")})
    await found.follow({"one": more}, A_MINUTE_S)
    assert told(found, "one") == ["nfs:filer:/x"]
    assert found.of(DriveId("one", "vdb")) is None
    paths.answer.set()


# By configuration


@pytest.mark.parametrize(
    ("text", "expected", "devices"),
    [
        # A device stands for itself, a path for its storage.
        ("device = '/dev/lv'", ["sda", "x", "sda", "sdb", "rbd:p"], {"x": LV}),
        ("device = '/dev/loop0'", ["sda", "sda", "x", "sdb", "rbd:p"], {"x": LOOP}),
        ("path = '/lv'", ["x", "x", "x", "sdb", "rbd:p"], {"x": SDA}),
        ("source = 'rbd:p'", ["sda", "sda", "sda", "sdb", "x"], {}),
        ("drives = ['a/*', 'l?/vd[ab]']", ["x", "x", "sda", "sdb", "rbd:p"], {"x": SDA}),
        ("drives = ['*/vda']", ["x", "x", "x", "x", "x"], {}),  # over several devices
        ("drives = ['[ab]/vda']\nsource = 'rbd:p'", ["x", "sda", "sda", "x", "x"], {}),
        ("device = '/dev/gone'", ["sda", "sda", "sda", "sdb", "rbd:p"], {}),
        # Several devices are one storage: by name, by a link's name, by wildcards.
        ("devices = ['/dev/sda', '/dev/sdb']", ["x", "x", "x", "x", "rbd:p"], {}),
        ("devices = ['/dev/lv', '/dev/sdb']", ["sda", "x", "sda", "x", "rbd:p"], {}),
        ("devices = ['/dev/sd*']", ["x", "x", "x", "x", "rbd:p"], {}),
        ("devices = ['/l*']", ["sda", "x", "x", "sdb", "rbd:p"], {}),  # as the VM has them
        ("devices = ['/dev/lv']", ["sda", "x", "sda", "sdb", "rbd:p"], {"x": LV}),
    ],
)
async def test_configuration_says_what_a_storage_is(
    paths: Paths, text: str, expected: list[str], devices: dict[str, Place]
) -> None:
    found = DriveStorages(configured(f"[storage.x]\n{text}"), lambda: paths)
    running = vms(a="/a", lv="/lv", loop="/loop", b="/b", net="rbd:p")
    await found.follow(running, A_MINUTE_S)
    assert told(found, "a", "lv", "loop", "b", "net") == expected
    assert {name: found.devices[name] for name in found.devices if name == "x"} == devices


async def test_a_drive_without_a_path_is_matched_by_patterns(paths: Paths) -> None:
    found = DriveStorages(configured("[storage.x]\ndrives = ['*/vda']"), lambda: paths)
    drives = {target: DriveInfo(target) for target in ("vda", "vdb")}
    running = {"one": VmInfo("one", drives), **vms(two="/a")}
    await found.follow(running, A_MINUTE_S)
    assert told(found, "one", "two") == ["x", "x"]
    assert found.of(DriveId("one", "vdb")) is None
    assert found.devices_of(DriveId("one", "vda")) is None
    assert found.devices == {"x": SDA}
    assert paths.asked == ["/a"]


async def test_a_name_that_looks_like_a_pattern_names_its_drive(paths: Paths) -> None:
    text = "[storage.x]\ndrives = ['Windows 10/vda', 'n/device[0]']"
    found = DriveStorages(configured(text), lambda: paths)
    plain = DriveInfo("device[0]", "/a")
    named = {"Windows 10": "/a", "other": "/a"}
    await found.follow(vms(**named) | {"n": VmInfo("n", {"device[0]": plain})}, A_MINUTE_S)
    assert told(found, "Windows 10", "other") == ["x", "sda"]
    assert found.of(DriveId("n", "device[0]")) == "x"


async def test_a_path_that_its_qemu_sees_elsewhere_is_on_what_that_sees(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inside, gone = Process(7, 1), Process(8, 1)

    class InContainer(Paths):
        def places(self, source: str, by: Process | None = None) -> tuple[Place, ...]:
            return {None: (SDA,), inside: (SDB,)}.get(by, ())

    found = DriveStorages({}, lambda: InContainer({}))
    known = vms(one="/a", two="/a", three="/a")
    running = known | {
        "two": replace(known["two"], process=inside),
        "three": replace(known["three"], process=gone),
    }
    for _ in range(2):
        await found.follow(running, A_MINUTE_S)
        assert told(found, "one", "two", "three") == ["sda", "sdb", None]
        found._recheck_at = 0.0
    assert found.devices_of(DriveId("three", "vda")) is None
    (line,) = caplog.messages
    assert line.startswith("/a: isn't found as its QEMU (process 8) sees it")


async def test_a_storage_may_be_named_as_it_is_found(paths: Paths) -> None:
    found = DriveStorages(configured("[storage.dm-1]\ncapacity = 5"), lambda: paths)
    await found.follow(vms(a="/a", lv="/lv"), A_MINUTE_S)
    assert told(found, "a", "lv") == ["sda", "dm-1"]


async def test_a_name_that_is_another_devices_is_told_apart(paths: Paths) -> None:
    found = DriveStorages(configured("[storage.sda]\ndevice = '/dev/sdb'"), lambda: paths)
    await found.follow(vms(a="/a", b="/b"), A_MINUTE_S)
    assert told(found, "a", "b") == ["/dev/sda", "sda"]
    assert found.devices == {"/dev/sda": SDA, "sda": SDB}


async def test_patterns_come_before_devices_and_the_first_of_several_wins(paths: Paths) -> None:
    text = """
        [storage.one]
        path = "/a"
        [storage.two]
        drives = ["b/vda", "a/vd?"]
        [storage.three]
        drives = ["b/*"]
        device = "/dev/lv"
    """
    found = DriveStorages(configured(text), lambda: paths)
    await found.follow(vms(a="/a", b="/b", c="/a", lv="/lv"), A_MINUTE_S)
    assert told(found, "a", "b", "c", "lv") == ["two", "two", "one", "three"]


async def test_a_configured_storage_without_drives_has_its_device(paths: Paths) -> None:
    found = DriveStorages(configured("[storage.x]\ndevice = '/dev/sdb'"), lambda: paths)
    await found.follow({}, A_MINUTE_S)
    assert found.devices == {"x": SDB}


async def test_real_paths_are_found(tmp_path: Path) -> None:
    image = tmp_path / "vm.raw"
    image.write_bytes(b"x")
    found = DriveStorages({})
    await found.follow(vms(one=str(image), two=str(tmp_path / "gone")), A_MINUTE_S)
    places = StoragePaths().places(str(image))
    assert told(found, "one", "two") == [places[-1].name, None]
