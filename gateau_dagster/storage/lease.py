"""Lease a store to one owner at a time; the lease is in the store itself, for all machines that reach it.

A lease is a file `_lease/<number>.json`. `Files.create` makes it only if it does not exist: on a disk by a hard link,
on S3 by a conditional write (`If-None-Match: *`). AWS, MinIO, Ceph and R2 have that. Numbers grow. The maker of the
next lease has seen all earlier ones. It gives the lease back if a higher one has appeared, since its number may then
have been another's. A thread renews a held lease every few seconds.
A lease ends by its release, or when its process is visibly gone. Otherwise it ends when it was not renewed for a while.
A newcomer then watches it on its own clock first, so that a clock jump or skew cannot expire a live lease.
A new owner fences the old one before any work, since a stopped process may wake up later; see `fence`.
"""

# Why the lease is a file of the store, what it costs, and when another way is better:
#
# - Two machines that share a store may share nothing else: no database, no clock, no list of processes. The store is
#   the one thing that both must reach to do harm.
# - On one machine `flock` is better: the kernel releases it with the process. S3 has no locks, and network disks have
#   them only if they are mounted so. A service for locks (etcd, ZooKeeper) would need to be run and reached.
# - The price: at the start two listings, a look at each lease and a conditional write, then a small write every
#   RENEW_SECONDS. After a death that cannot be seen, the next run waits up to EXPIRES_SECONDS and WATCH_SECONDS more.
# - A shorter expiry would end these waits sooner, and runs on a slow server or a swapping machine, too. That is no
#   danger to the tables, since commits are fenced, but it wastes work.
# - A lease alone proves nothing: between a look at it and a write, any time may pass. That is why `fence` exists.

import json
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from types import TracebackType

from gateau_dagster.errors import GateauError
from gateau_dagster.storage.fence import LEASES as FOLDER
from gateau_dagster.storage.fence import LeaseLostError, Token, acting_as, lease_name, loss_message, lost
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.process_identity import ProcessIdentity
from gateau_dagster.storage.stamp import fingerprint

RENEW_SECONDS = 10.0
EXPIRES_SECONDS = 60.0
WATCH_SECONDS = 25.0  # two renewals, and time for a slow one
_CHECK = "check"
_MOST_BYTES = 1 << 20
_NO_LEASE = b""  # represents an oversized file, or something that is no file
_NUMBERED = re.compile(r"([0-9]{1,18})(\.json)?")
_LAST_SECOND = 253402300799  # in the year 9999
# The ids of the leases that this process holds or is about to take.
_of_this_process: set[str] = set()


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The holder of a lease.

    party: holders of one party may share a store. exclusive: two exclusive holders may not, even of one party.
    process: a `ProcessIdentity`; lease: the id of one of its leases. since, renewed_at: seconds since 1970, by the
    holder's clock.
    """

    party: str
    exclusive: bool
    process: str
    configuration: str
    since: float
    renewed_at: float
    renewals: int = 0
    released: bool = False
    lease: str = ""

    def conflicts(self, other: "Holder") -> bool:
        """Return whether the two cannot work on a store at once."""
        return self.party != other.party or (self.exclusive and other.exclusive)

    def described(self) -> str:
        """Describe the holder to the user who has to wait."""
        process = ProcessIdentity.from_text(self.process)
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"process {process.pid} on {process.host}, with {self.configuration}, since {since}"

    def to_bytes(self) -> bytes:
        """Return the holder as JSON, with a digest."""
        content = asdict(self)
        return json.dumps({**content, _CHECK: fingerprint(content)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Holder | None":
        """Return the holder from `to_bytes` output; None for anything else."""
        try:
            content = json.loads(data)
            whole = content.pop(_CHECK) == fingerprint(content)
            holder = cls(**content)
            return holder if whole and holder._is_valid() else None
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            return None

    def _is_valid(self) -> bool:
        ProcessIdentity.from_text(self.process)  # raises ValueError if it names no process
        texts = (self.party, self.process, self.configuration, self.lease)
        return (
            all(isinstance(each, str) for each in texts)
            and all(isinstance(each, bool) for each in (self.exclusive, self.released))
            and all(type(each) in {int, float} and 0 <= each <= _LAST_SECOND for each in (self.since, self.renewed_at))
            and type(self.renewals) is int
        )


class Lease:
    """A lease, held within a `with` block.

    Args:
        files: of the store.
        party: see Holder, with `exclusive`.
        configuration: for messages.
        say: receives messages about waiting, and about a loss of the lease.

    Raises (on entering):
        GateauError: another holder has the store (the message names it), or the store cannot be written.
        TransientError: the server does not answer.
    """

    def __init__(
        self,
        files: Files,
        *,
        party: str,
        exclusive: bool,
        configuration: str,
        say: Callable[[str], None],
    ) -> None:
        now = time.time()
        identity = ProcessIdentity.of().to_text()
        self._holder = Holder(
            party=party,
            exclusive=exclusive,
            process=identity,
            configuration=configuration,
            since=now,
            renewed_at=now,
            lease=uuid.uuid4().hex,
        )
        self._files, self._say = files, say
        self._number = 0
        self._ending = threading.Event()
        self._lost = ""
        self._ended: dict[int, str] = {}  # leases that no longer count: released, gone (its process), or silent
        self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")

    def __enter__(self) -> "Lease":
        _of_this_process.add(self._holder.lease)
        try:
            self._acquire()
        except BaseException:
            _of_this_process.discard(self._holder.lease)
            raise
        return self

    @property
    def token(self) -> Token:
        """Return the token that proves this lease while it is held."""
        return Token(root=self._files.root, number=self._number, lease=self._holder.lease)

    def _acquire(self) -> None:
        """Take the lease; raise the errors of entering."""
        with acting_as():
            while True:
                self._ended = {}
                numbers = self._numbers()
                living = {number for number in numbers if not self._has_ended(number)}
                now = time.time()
                self._holder = replace(self._holder, since=now, renewed_at=now)
                if self._take(max(numbers, default=0) + 1):
                    break
            # Renewed from the first moment: fencing the old owner may take longer than a lease lives.
            self._thread.start()
            try:
                self._fence(living)
            except BaseException:
                # The lease stays without a release: the next owner fences what is left.
                self._ending.set()
                self._thread.join()
                raise

    def _fence(self, living: set[int]) -> None:
        """Remove the ended leases, then the temporaries that name them: their holders commit nothing more."""
        silent = [number for number, how in self._ended.items() if how == "silent"]
        for number in silent:
            self._files.remove(lease_name(number))
        self._clear_away([number for number in self._ended if number not in silent])
        # A process that is gone may have left others behind, or temporary objects on a failed server.
        if {*self._ended.values()} - ({"released"} if self._files.is_local else set()):
            self._files.sweep(lambda number: number < self._number and number not in living)

    def _take(self, number: int) -> bool:
        """Create the lease with this number, and return whether it is ours."""
        if not self._files.create(lease_name(number), self._holder.to_bytes()):
            return False
        if max(self._numbers(), default=0) > number:
            self._clear_away([number])
            return False
        self._number = number
        return True

    def _clear_away(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            with suppress(GateauError, OSError):  # it has ended, and the next owner removes it
                self._files.remove(lease_name(number))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, LeaseLostError):
            self._lose(str(error))
        self.release()
        if self._lost:
            raise LeaseLostError("storage.lease_lost", self._lost) from error

    def release(self) -> None:
        """Release the lease; safe to call twice, or from a process that ends without leaving its blocks."""
        if self._ending.is_set():
            return
        self._ending.set()
        self._thread.join()
        _of_this_process.discard(self._holder.lease)
        if self._lost:
            return
        try:
            # The file stays until the next holder has a higher number: numbers must not repeat.
            with acting_as(self.token):
                self._files.write(lease_name(self._number), replace(self._holder, released=True).to_bytes())
        except LeaseLostError as error:
            self._lose(str(error))
        except (GateauError, OSError) as error:  # the result of the work counts, and the lease ends with the process
            self._say(f"The lease of {self._files.root} could not be released; it expires by itself: {error}")

    def _lose(self, message: str) -> None:
        self._lost = message
        lost(message)  # for the process's last line

    def _has_ended(self, number: int) -> bool:
        """Return whether a lease no longer counts; a live lease that may share the store returns False.

        A refresh also ends expired steps of its party, since their machine may wake up during its work.

        Raises:
            GateauError: the lease lives, and the two conflict.
        """
        data = self._read(number)
        if data is None:
            return True
        holder = Holder.from_bytes(data)
        if holder is None and self._changes(number, data, "A lease is damaged"):
            return self._has_ended(number)  # its holder has written it again
        how = "silent" if holder is None else self._end_of(holder, number, data)
        if how:
            self._ended[number] = how
        return bool(how)

    def _end_of(self, holder: Holder, number: int, data: bytes) -> str:
        """Return how a lease ended, as in `_ended`; empty if it lives and may share the store."""
        state = ProcessIdentity.from_text(holder.process).state()
        could_not_be_given_back = holder.process == self._holder.process and holder.lease not in _of_this_process
        if holder.released:
            return "released"
        if state == "gone" or could_not_be_given_back:
            return "gone"
        conflicts = self._holder.conflicts(holder)
        if conflicts or self._holder.exclusive:
            silent = abs(time.time() - holder.renewed_at)
            seems = f"The lease of {holder.described()} seems to have expired"
            if state == "unknown" and silent > EXPIRES_SECONDS and not self._changes(number, data, seems):
                return "silent"
        if conflicts:
            raise GateauError("storage.lease_held", _refusal(self._files.root, holder, state == "unknown"))
        return ""

    def _changes(self, number: int, data: bytes | None, why: str) -> bool:
        """Return whether a lease is renewed while it is watched; False if it disappears."""
        self._say(f"{why}; watching it for {WATCH_SECONDS:.0f} s")
        deadline = time.monotonic() + WATCH_SECONDS
        while time.monotonic() < deadline:
            time.sleep(min(1.0, WATCH_SECONDS / 10))
            found = self._read(number)
            if found != data:
                return found is not None
        return False

    def _keep(self) -> None:
        """Renew the lease until it ends; end the work of this process if another run took the store."""
        known = {self._number}
        while not self._ending.wait(RENEW_SECONDS):
            try:
                with acting_as(self.token):
                    if taken_by := self._successor(known):
                        raise LeaseLostError("storage.lease_lost", loss_message(self._files.root, taken_by))
                    renewals = self._holder.renewals + 1
                    self._holder = replace(self._holder, renewed_at=time.time(), renewals=renewals)
                    self._files.write(lease_name(self._number), self._holder.to_bytes())
            except LeaseLostError as error:
                self._lose(str(error))
                self._say(self._lost)
                # As Ctrl-C ends the run: children end, and what can be kept is kept. Its commits fail from now on in
                # any case.
                os.kill(os.getpid(), signal.SIGINT)
                return
            except (GateauError, OSError):
                # The work itself meets and reports a lost server or a full disk. The renewal is retried.
                continue
            except Exception as error:
                # Without this thread another run would take the store while this one works.
                self._say(
                    f"The lease of {self._files.root} was not renewed ({type(error).__name__}: {error}). Trying again."
                )

    def _successor(self, known: set[int]) -> str:
        """Describe the current holder if that is another one; return an empty text otherwise."""
        numbers = self._numbers()
        for number in numbers:
            if number not in known and number > self._number:
                data = self._read(number)
                holder = None if data is None else Holder.from_bytes(data)
                if holder is None:
                    continue  # damaged, or half-written on a disk without links: it is read again
                if self._holder.conflicts(holder):
                    return holder.described()
                known.add(number)
        return "" if self._number in numbers else "another run"

    def _numbers(self) -> list[int]:
        found = map(_NUMBERED.fullmatch, self._files.names(FOLDER))
        return sorted(int(match[1]) for match in found if match is not None)

    def _read(self, number: int) -> bytes | None:
        try:
            size = self._files.size(lease_name(number))
            return _NO_LEASE if size is None or size > _MOST_BYTES else self._files.read(lease_name(number))
        except FileNotFoundError:
            return None


def _refusal(root: str, holder: Holder, elsewhere: bool) -> str:
    text = (
        f"{root} is in use by {holder.described()}. Only one run works on a store at a time. Wait until it ends, "
        "or end it."
    )
    if elsewhere:
        silent = max(0.0, time.time() - holder.renewed_at)
        text += (
            f" It last renewed its lease {silent:.0f} s ago. If it has died, its lease expires {EXPIRES_SECONDS:.0f} "
            "s after that."
        )
    return text
