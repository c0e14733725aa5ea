"""The verbs on a connection of the caller's.

Neither rules nor SQL are written here: the library has both. A verb loads the row, asks the rule and saves what
it says, inside a transaction.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union

from . import _library
from ._fences import Fences
from ._session import session_of, verb
from ._types import (
    Acquired,
    Broken,
    Busy,
    ExpiredOnArrival,
    FloorTooLow,
    InvalidLeaseRow,
    InvalidTtl,
    LargestTokenNeeded,
    LeaseInfo,
    LiteleaseError,
    NewerFormat,
    NotBootstrapped,
    Reason,
    Rejected,
    Released,
    Renewed,
    SchemaMismatch,
    TimeOverflow,
    TokenExhausted,
    Transferred,
    UnexpectedChange,
)

if TYPE_CHECKING:
    from ._hold import Held

_RESOURCES, _META = "litelease_resources", "litelease_meta"
_FORMAT = 1
_CLAIM, _RENEW, _RELEASE, _TRANSFER, _BREAK, _INSPECT, _CLAIM_FROM_DEAD = range(7)
_TO_RAISE, _TO_RESTORE, _TO_RECORD = 1, 2, 3
_REASONS = list(Reason)
_MAX = 2**63 - 1

Row = tuple[Union[str, None], int, Union[int, None]]
T = TypeVar("T")


class Litelease(Fences):
    """Leases in the main database of a ``sqlite3`` connection.

    Each verb takes ``now_ms`` for tests and simulations; without it the system clock is read once the write lock
    is held. ``ttl`` is in seconds, or in whole milliseconds as ``ttl_ms``.

    >>> db = Litelease(sqlite3.connect(":memory:"))
    >>> db.bootstrap()
    >>> db.claim("scheduler", "a", ttl=30).lease.token
    1
    >>> type(db.claim("scheduler", "b", ttl=30)).__name__
    'Busy'
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.conn = connection
        self._session = session_of(connection)
        # Whether a transaction of the caller's must be open.
        self._is_joined = False
        # An epoch that is to be confirmed after its commit: boot and floor.
        self._unconfirmed: tuple[int, int] | None = None
        # The schema that was found right, by its numbers, and whether it has a table for the epoch; and one that was found
        # inside a transaction of ours: if that is rolled back, another schema will get its number.
        self._checked: tuple[tuple[int, int], bool] | None = None
        self._found: tuple[tuple[int, int], bool] | None = None

    def joining(self) -> Litelease:
        """Returns the same verbs for use inside transactions of yours only: each raises ``NotInTransaction`` if none is open.

        SQLite ends a transaction by itself after some errors (a full disk, ``ON CONFLICT ROLLBACK``). A plain handle would
        then commit the next claim alone.

        >>> db = Litelease(sqlite3.connect(":memory:", isolation_level=None))
        >>> db.bootstrap()
        >>> in_tx = db.joining()
        >>> _ = db.conn.execute("BEGIN IMMEDIATE")
        >>> in_tx.claim("scheduler", "a", ttl=30).lease.token
        1
        >>> _ = db.conn.execute("COMMIT")
        >>> in_tx.claim("reports", "a", ttl=30)
        Traceback (most recent call last):
        ...
        litelease._types.NotInTransaction: no transaction is open, so this would be stored by itself: it was not begun, \
or SQLite has ended it after an error; begin it again
        """
        joined = Litelease(self.conn)
        joined._is_joined = True
        return joined

    @verb
    def bootstrap(self) -> None:
        """Creates the lease table if it is missing; otherwise checks it strictly.

        Call it at every start, outside a transaction: it also records the present boot of the machine, so that no power cut
        can take that. From then on all grants of this boot are in order after one, whatever the ``synchronous`` of the
        connection that makes them. Inside a transaction it records nothing.

        >>> Litelease(sqlite3.connect(":memory:")).bootstrap()
        """
        try:
            has_epoch = self._check()
        except NotBootstrapped:
            if self.conn.in_transaction:
                return self._write(self._create_if_missing, locks=False)
            return self._durably(self._create_and_record)
        if not self.conn.in_transaction:
            self._record_boot(has_epoch)

    @verb
    def claim(
        self,
        name: str,
        owner: str,
        ttl: float | None = None,
        *,
        ttl_ms: int | None = None,
        now_ms: int | None = None,
        min_token: int = 0,
    ) -> Acquired | Busy:
        """Grants ``name`` to ``owner`` if nobody has it, under a token larger than ``min_token``."""
        if not isinstance(owner, str):
            raise TypeError(f"names and owners are str, got {owner!r}")
        ttl_ms = _in_ms(name, ttl, ttl_ms)

        def decide(row: Row | None, floor: int, now: int) -> tuple[_library.Decision, Acquired | Busy]:
            decision = _ask(
                name, _CLAIM, row=row, owner=owner, ttl_ms=ttl_ms, now_ms=now, floor=max(floor, min_token)
            )
            if decision.outcome == 1:
                return decision, Busy(_lease(name, row))
            return decision, Acquired(LeaseInfo(name, owner, decision.token, decision.expires_at_ms))

        if not self.conn.in_transaction:
            # A live lease is busy without the write lock.
            self._check()
            row, _ = self._load(name)
            now = _time(now_ms)
            if _is_live(row, now):
                return decide(row[1:] if row else None, 0, now)[1]
        return self._change(name, owner, now_ms, decide)

    @verb
    def _claim_from_dead(
        self,
        name: str,
        owner: str,
        ttl: float | None = None,
        *,
        dead: LeaseInfo,
        ttl_ms: int | None = None,
        now_ms: int | None = None,
    ) -> Acquired | Busy:
        """Claims a name whose holder the caller knows to have ended: takes over exactly the grant ``dead`` in one commit,
        under a new token. If another grant is live by now, the answer is ``Busy``.

        ``hold`` finds dead holders by itself.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> dead = db.claim("scheduler", "a", ttl=30).lease
        >>> db._claim_from_dead("scheduler", "b", ttl=30, dead=dead).lease.token
        2
        """
        if not isinstance(owner, str):
            raise TypeError(f"names and owners are str, got {owner!r}")
        ttl_ms = _in_ms(name, ttl, ttl_ms)

        def decide(row: Row | None, floor: int, now: int) -> tuple[_library.Decision, Acquired | Busy]:
            decision = _ask(
                name,
                _CLAIM_FROM_DEAD,
                row=row,
                owner=dead.owner,
                token=dead.token,
                new_owner=owner,
                ttl_ms=ttl_ms,
                now_ms=now,
                floor=floor,
            )
            if decision.outcome == 1:
                return decision, Busy(_lease(name, row))
            return decision, Acquired(LeaseInfo(name, owner, decision.token, decision.expires_at_ms))

        return self._change(name, owner, now_ms, decide)

    @verb
    def renew(
        self, lease: LeaseInfo, ttl: float | None = None, *, ttl_ms: int | None = None, now_ms: int | None = None
    ) -> Renewed | Rejected:
        """Prolongs this grant to at least ``ttl`` from now. It never shortens a lease and never revives one.

        Owner and token must both match: a later grant to the same owner text is not renewed.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> lease = db.claim("scheduler", "a", ttl=30).lease
        >>> type(db.renew(lease, ttl=60)).__name__
        'Renewed'
        """
        name, owner, token = _grant(lease, "renew")
        return self._renew(name, owner, _in_ms(name, ttl, ttl_ms), now_ms, token)

    @verb
    def renew_by_owner(
        self,
        name: str,
        owner: str,
        ttl: float | None = None,
        *,
        ttl_ms: int | None = None,
        now_ms: int | None = None,
    ) -> Renewed | Rejected:
        """Prolongs whichever lease ``owner`` has now, for a caller that knows only the owner text.

        Two processes that use one owner text would renew each other's leases.
        """
        return self._renew(name, owner, _in_ms(name, ttl, ttl_ms), now_ms, None)

    @verb
    def release(self, lease: LeaseInfo, *, now_ms: int | None = None) -> Released | Rejected:
        """Ends this grant early. Owner and token must both match."""
        return self._release(*_grant(lease, "release"), now_ms)

    @verb
    def release_by_owner(self, name: str, owner: str, *, now_ms: int | None = None) -> Released | Rejected:
        """Ends whichever lease ``owner`` has now, for a caller that knows only the owner text."""
        return self._release(name, owner, None, now_ms)

    @verb
    def transfer(
        self,
        lease: LeaseInfo,
        new_owner: str,
        ttl: float | None = None,
        *,
        ttl_ms: int | None = None,
        now_ms: int | None = None,
    ) -> Transferred | Rejected:
        """Hands this grant to a new owner under a new token, in one step. Owner and token must both match."""
        name, owner, token = _grant(lease, "transfer")
        return self._transfer(name, owner, token, new_owner, _in_ms(name, ttl, ttl_ms), now_ms)

    @verb
    def transfer_by_owner(
        self,
        name: str,
        owner: str,
        new_owner: str,
        ttl: float | None = None,
        *,
        ttl_ms: int | None = None,
        now_ms: int | None = None,
    ) -> Transferred | Rejected:
        """Hands on whichever lease ``owner`` has now, for a caller that knows only the owner text."""
        return self._transfer(name, owner, None, new_owner, _in_ms(name, ttl, ttl_ms), now_ms)

    @verb
    def break_lease(self, name: str, *, now_ms: int | None = None) -> Broken | Rejected:
        """Ends any holder's live lease and raises the token, for operators."""

        def decide(row: Row | None, floor: int, now: int) -> tuple[_library.Decision, Broken | Rejected]:
            decision = _ask(name, _BREAK, row=row, now_ms=now, floor=floor)
            if decision.outcome:
                return decision, _rejected(name, decision, row, now)
            lease = _lease(name, row)
            return decision, Broken(lease.owner, lease.token)

        return self._change(name, None, now_ms, decide)

    @verb
    def inspect(self, name: str, *, now_ms: int | None = None) -> LeaseInfo | None:
        """Returns the live lease on ``name``, if there is one. Takes no write lock."""
        return self._live(name, now_ms)

    @verb
    def owner(self, name: str, *, now_ms: int | None = None) -> str | None:
        """Returns the owner of the live lease on ``name``, if there is one. Takes no write lock."""
        lease = self._live(name, now_ms)
        return lease.owner if lease else None

    @verb
    def token(self, name: str) -> int | None:
        """Returns the newest token of ``name``, live or not. Takes no write lock."""
        return self._newest(name)

    @verb
    def purge(self, before_ms: int, *, now_ms: int | None = None) -> int:
        """Deletes the rows of names that have not been live since then, and returns how many. Their tokens are never
        granted again."""

        def work() -> int:
            has_epoch = self._check()
            limit = min(before_ms, _time(now_ms))
            largest, count = 0, 0
            for found in self._run("ended", limit):
                largest, count = max(largest, _valid("?", found)[2]), count + 1
            if count == 0:
                return 0
            self._keep(has_epoch, self._epoch(has_epoch, largest, wish=_TO_RAISE))
            if (changed := self._cursor().execute(_library.statement("delete_ended"), (limit,)).rowcount) != count:
                raise UnexpectedChange(f"purging changed {changed} rows instead of {count}")
            return count

        return self._durably(lambda: self._session.whole(work))

    @verb
    def raise_floor(self, floor: int) -> None:
        """Raises the floor of the file: every token granted from now on, of any name, is larger than ``floor``.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> db.raise_floor(1000)
        >>> db.claim("scheduler", "a", ttl=30).lease.token
        1001
        """
        _check_floor(floor)

        def work() -> None:
            has_epoch = self._check()
            present = self._stored_epoch(has_epoch)[0]
            if floor < present:
                raise FloorTooLow(f"the floor of the file is {present} already, and {floor} is less: tokens never sink")
            if floor == _MAX:
                raise TokenExhausted("no larger token exists")
            if floor > present:
                self._keep(has_epoch, self._epoch(has_epoch, floor, wish=_TO_RAISE))

        self._durably(lambda: self._session.whole(work))

    @verb
    def raise_name(self, name: str, floor: int) -> None:
        """Raises the token of one name above ``floor``, and ends its lease if it is live: no token up to the floor
        counts any more."""
        _check_floor(floor)
        if floor == _MAX:
            raise TokenExhausted(f"{name!r}: no larger token exists")

        def decide(row: Row | None, file_floor: int, _now: int) -> tuple[_library.Decision, None]:
            present = max(row[1] if row else 0, file_floor)
            if floor < present:
                raise FloorTooLow(f"{name!r}: its token is {present} already, and {floor} is less: tokens never sink")
            return _library.Decision(writes=True, token=floor + 1), None

        self._change(name, None, None, decide)

    @verb
    def restore_fence(self, *, above: int | None = None) -> int:
        """Fences off everything that was granted before this file was restored from a backup, and returns the new floor.

        Call it once, after putting the backup in place and before anybody uses it. It ends every lease, and raises
        every token and the floor far above all that can have been granted since the backup was made, and above the token
        ``above``: the largest one that was seen anywhere. Where the system has no boot id it must be given, or this is
        ``LargestTokenNeeded``: there each start of a process takes an epoch.

        >>> db = Litelease(sqlite3.connect(":memory:"))
        >>> db.bootstrap()
        >>> db.restore_fence(above=2**48) > 2**48
        True
        """
        if above is not None:
            _check_floor(above)
        elif self._file() and (reason := _library.needs_largest_token()):
            raise LargestTokenNeeded(reason)

        def work() -> int:
            has_epoch = self._check()
            tokens = [_valid("?", found)[2] for found in self._run("list")]
            has_pools = self._is_there("litelease_pools") and self._is_there("litelease_pool_slots")
            slots = [self._run("newest_slot")[0][0] or 0] if has_pools else []
            epoch = self._epoch(has_epoch, max([above or 0, *tokens, *slots]), wish=_TO_RESTORE)
            self._keep(has_epoch, epoch)
            if has_pools:
                self._run("free_slots")
                self._run("free_pools")
            fence = _library.statement("fence")
            if (changed := self._cursor().execute(fence, (epoch.floor, _time(None))).rowcount) != len(tokens):
                raise UnexpectedChange(f"fencing changed {changed} rows instead of {len(tokens)}")
            return epoch.floor

        return self._durably(lambda: self._session.whole(work))

    def hold(
        self, name: str, ttl: float = 60.0, *, wait: float = 0.0, owner: str | None = None
    ) -> Held:
        """Claims ``name`` and keeps it alive in the background until the block ends.

        Waits up to ``wait`` seconds for it; ``TimeoutError`` if it is still somebody else's then. A holder whose process
        has ended is taken over at once, on Linux. A forked child is not the holder: ``check()`` raises ``Lost`` there.
        """
        from ._hold import Held

        if self._is_joined:
            raise LiteleaseError("a hold cannot be part of a transaction: call hold() on Litelease(conn), outside of one")
        return Held(self.conn, name, ttl, wait, owner)

    @verb
    def _renew_all(self, grants: list[tuple[str, str, float, int]]) -> list[Renewed | Rejected | LiteleaseError]:
        """Renews grants (name, owner, ttl, token) in one transaction."""

        def renew(name: str, owner: str, ttl: float, token: int) -> Renewed | Rejected | LiteleaseError:
            try:
                return self._renew(name, owner, _in_ms(name, ttl, None), None, token)
            except (InvalidLeaseRow, TimeOverflow) as error:
                return error  # what is wrong with one row is not the others' fault

        return self._write(lambda: [renew(*grant) for grant in grants])

    # How it is stored.

    def _renew(
        self, name: str, owner: str, ttl_ms: int, now_ms: int | None, token: int | None
    ) -> Renewed | Rejected:
        def decide(row: Row | None, _floor: int, now: int) -> tuple[_library.Decision, Renewed | Rejected]:
            decision = _ask(name, _RENEW, row=row, owner=owner, ttl_ms=ttl_ms, now_ms=now, token=token)
            if decision.outcome:
                return decision, _rejected(name, decision, row, now)
            return decision, Renewed(LeaseInfo(name, owner, decision.token, decision.expires_at_ms))

        return self._change(name, owner, now_ms, decide)

    def _release(self, name: str, owner: str, token: int | None, now_ms: int | None) -> Released | Rejected:
        def decide(row: Row | None, _floor: int, now: int) -> tuple[_library.Decision, Released | Rejected]:
            decision = _ask(name, _RELEASE, row=row, owner=owner, now_ms=now, token=token)
            if decision.outcome:
                return decision, _rejected(name, decision, row, now)
            return decision, Released(name, decision.token)

        return self._change(name, None, now_ms, decide)

    def _transfer(
        self, name: str, owner: str, token: int | None, new_owner: str, ttl_ms: int, now_ms: int | None
    ) -> Transferred | Rejected:
        def decide(row: Row | None, floor: int, now: int) -> tuple[_library.Decision, Transferred | Rejected]:
            decision = _ask(
                name,
                _TRANSFER,
                row=row,
                owner=owner,
                new_owner=new_owner,
                ttl_ms=ttl_ms,
                now_ms=now,
                token=token,
                floor=floor,
            )
            if decision.outcome:
                return decision, _rejected(name, decision, row, now)
            return decision, Transferred(LeaseInfo(name, new_owner, decision.token, decision.expires_at_ms))

        return self._change(name, new_owner, now_ms, decide)

    def _change(
        self,
        name: str,
        owner: str | None,
        at_ms: int | None,
        decide: Callable[[Row | None, int, int], tuple[_library.Decision, T]],
    ) -> T:
        def work() -> tuple[_library.Decision, T]:
            has_epoch = self._check()
            # Read the clock here, under the write lock: waiting for the lock takes time too.
            now = _time(at_ms)
            row, floor = self._load(name, has_epoch)
            decision, answer = decide(row[1:] if row else None, floor, now)
            if decision.writes:
                if decision.token > (row[2] if row else 0) and self._needs_epoch(has_epoch, decision.token):
                    raise _EpochNeeded(decision.token)
                expiry = decision.expires_at_ms if decision.has_owner else None
                values = (owner if decision.has_owner else None, decision.token, expiry, now)
                which, key = ("update", row[0]) if row else ("insert", name)
                changed = self._cursor().execute(_library.statement(which), (key, *values)).rowcount
                if changed != 1:
                    raise UnexpectedChange(f"writing {name!r} changed {changed} rows instead of 1")
            return decision, answer

        for _ in range(4):
            try:
                decision, answer = self._write(work)
                break
            except _EpochNeeded as epoch_needed:
                # The epoch comes before the grant, and then the floor may be another one.
                self._record_epoch(epoch_needed.token)
        else:
            raise SchemaMismatch(f"{_META}: it does not keep an epoch")
        if decision.writes and decision.has_owner and at_ms is None and _time(None) >= decision.expires_at_ms:
            raise ExpiredOnArrival(LeaseInfo(name, owner or "", decision.token, decision.expires_at_ms))
        return answer

    def _needs_epoch(self, has_epoch: bool, token: int) -> bool:
        if has_epoch and _library.epoch_covers(*self._stored_epoch(has_epoch), token):
            return False
        return bool(self._epoch(has_epoch, token).writes)

    def _record_epoch(self, token: int, *, wish: int = 0) -> None:
        """Stores the epoch that is needed before ``token`` may be granted, or for what else is wished."""

        def work() -> None:
            has_epoch = self._check()
            self._keep(has_epoch, self._epoch(has_epoch, token, wish=wish))

        self._durably(work)

    def _record_boot(self, has_epoch: bool) -> None:
        """Records the present boot so that no power cut can take that, if it is not recorded yet. On a strong connection,
        too: a weaker one may join later, with grants inside its transactions."""
        if not self._epoch(has_epoch, 0, wish=_TO_RECORD).writes:
            return
        try:
            self._record_epoch(0, wish=_TO_RECORD)
        except sqlite3.OperationalError as error:
            # Nobody can be granted anything through a read-only connection, either. But query_only can be switched off.
            if "readonly" not in str(error) or self._cursor().execute("PRAGMA query_only").fetchone()[0]:
                raise

    @verb
    def _has_recorded_boot(self) -> bool:
        """Checks whether the present boot is durably recorded."""
        return not self._epoch(self._check(), 0, wish=_TO_RECORD).writes

    def _epoch(self, has_epoch: bool, number: int, *, wish: int = 0) -> _library.Epoch:
        """The epoch that the file needs to grant a token, or what else is wished."""
        code, epoch = _library.epoch(
            wish,
            number,
            stored=self._stored_epoch(has_epoch),
            file=self._file(),
            journal_mode=_as_text(self._run("journal_mode")[0][0]),
            synchronous=self._synchronous(),
            is_own=not self.conn.in_transaction or self._session.is_own,
        )
        if code:
            raise TokenExhausted("every name: no larger token exists")
        return epoch

    def _file(self) -> str:
        """Returns the path of the main database; empty for one in memory."""
        (file,) = self._run("file")[0] or (None,)
        return _as_text(file or "")

    def _stored_epoch(self, has_epoch: bool) -> tuple[int, int]:
        floor, boot = self._run("epoch")[0] if has_epoch else (0, 0)
        return floor, boot

    def _keep(self, has_epoch: bool, epoch: _library.Epoch) -> None:
        if not epoch.writes:
            return
        floor, boot = epoch.floor, epoch.boot
        if not has_epoch:
            self._run("create_meta")
        if boot > 0 and self._session.is_own:
            # Unsure until this commit has been synced. A change that changes nothing would not be written.
            self._run("forget_epoch")
            self._unconfirmed = (boot, floor)
            boot = -boot
        self._run("keep_epoch", _FORMAT, floor, boot)

    def _synchronous(self) -> int:
        """Returns the caller's ``synchronous``, also while it is raised."""
        level = self._session.level
        if level is None:
            ((level,),) = self._run("synchronous")
        return int(level)

    def _durably(self, work: Callable[[], T]) -> T:
        """Does ``work`` as ``_write`` does and, in a transaction of its own, so that no power cut can take it: the
        caller's ``synchronous`` is raised for this commit and put back, whatever happens."""
        if self.conn.in_transaction:
            return self._write(work)
        self._unconfirmed = None
        done = self._write_durably(work) if self._epoch(False, 0).may_lose_commits else self._write(work)
        if (epoch := self._unconfirmed) is not None:
            self._unconfirmed = None
            self._write(lambda: self._run("confirm_epoch", *epoch))
            _library.epoch_recorded(self._file(), epoch[1])
        return done

    def _write_durably(self, work: Callable[[], T]) -> T:
        raise_it = _library.statement("raise_synchronous")
        return self._session.raised(raise_it, self._synchronous(), lambda: self._write(work))

    def _write(self, work: Callable[[], T], locks: bool = True) -> T:
        """Does ``work`` with the write lock held: in a transaction of its own, or in the caller's, whose busy
        timeout applies because the lock comes before anything is read."""
        if self.conn.in_transaction:
            if locks and not self._session.is_own:
                try:
                    self._run("lock")
                except sqlite3.OperationalError:
                    self._check()
                    raise
            return work()
        self._found = None
        done = self._session.transaction(work)
        self._checked, self._found = self._found or self._checked, None
        return done

    def _live(self, name: str, now_ms: int | None) -> LeaseInfo | None:
        self._check()
        row, _ = self._load(name)
        now = _time(now_ms)
        return _lease(name, row[1:]) if row and _is_live(row, now) else None

    def _newest(self, name: str) -> int | None:
        self._check()
        row, _ = self._load(name)
        return row[2] if row else None

    def _create_if_missing(self) -> None:
        try:
            self._check()
        except NotBootstrapped:
            self._run("create")

    def _create_and_record(self) -> None:
        self._create_if_missing()
        has_epoch = self._check()
        self._keep(has_epoch, self._epoch(has_epoch, 0, wish=_TO_RECORD))

    def _check(self) -> bool:
        """Checks that the tables are ours. Returns whether the file has an epoch.

        A schema that was found right stays so until SQLite gives it another number. Not in a transaction, though: if that
        is rolled back, another schema will get the number.
        """
        numbers = self._run("schema_version")[0][0], self._run("temp_schema_version")[0][0]
        known = self._found if self._session.is_own and self._found else self._checked
        if known and known[0] == numbers:
            has_epoch = known[1]
        else:
            self._check_format()
            if not self._is_there(_RESOURCES):
                raise NotBootstrapped("this database has no lease table yet: call bootstrap() once first")
            has_epoch = self._is_there(_META)
            if self._session.is_own:
                self._found = numbers, has_epoch
            elif not self.conn.in_transaction:
                self._checked = numbers, has_epoch
        if has_epoch and self._run("meta_is_right") != [(1,)]:
            self._check_format()
            raise SchemaMismatch(f"{_META}: its row is missing or is not one of format {_FORMAT}")
        return has_epoch

    def _check_format(self) -> None:
        try:
            ((newest,),) = self._run("format")
        except sqlite3.OperationalError as error:
            if "no such" not in str(error):
                raise
            return
        if isinstance(newest, int) and newest > _FORMAT:
            raise NewerFormat(f"the file has format {newest} and this version knows {_FORMAT}: use a newer Litelease")

    def _is_there(self, table: str) -> bool:
        found = self._run("entry", table)
        if not found:
            return False
        for kind, text in found + self._run("intruders", table):
            if reason := _library.difference(table, _as_text(kind), _as_text(text)):
                raise SchemaMismatch(f"the table {table} is not as Litelease makes it: {reason}")
        return True

    def _load(self, name: str, has_epoch: bool = False) -> tuple[tuple[int, str | None, int, int | None] | None, int]:
        if not isinstance(name, str):
            raise TypeError(f"names and owners are str, got {name!r}")
        rows = self._run("load", name)
        return (_valid(name, rows[0]) if rows else None), self._stored_epoch(has_epoch)[0]

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._cursor().execute(_library.statement(statement), values).fetchall()

    def _cursor(self) -> sqlite3.Cursor:
        return self._session.cursor()


class _EpochNeeded(Exception):
    """The file's epoch is not right for this token."""

    def __init__(self, token: int) -> None:
        super().__init__(token)
        self.token = token


def _grant(lease: LeaseInfo, verb: str) -> tuple[str, str, int]:
    if not isinstance(lease, LeaseInfo):
        raise TypeError(
            f"{verb}() takes the lease that a claim granted, got {lease!r}: for a name and an owner there is {verb}_by_owner()"
        )
    return lease.name, lease.owner, lease.token


def _check_floor(floor: int) -> None:
    if not isinstance(floor, int) or not -(2**63) <= floor <= _MAX:
        raise OverflowError(f"a floor must be a whole number of at most 64 bits, got {floor!r}")


def _time(at_ms: int | None) -> int:
    """Returns the given time, or the system clock's: Unix time in milliseconds."""
    return at_ms if at_ms is not None else _library.now_ms()


def _in_ms(name: str, ttl: float | None, ttl_ms: int | None) -> int:
    """Converts a ttl to whole milliseconds, rounded up, so that a lease never ends early."""
    if (ttl is None) == (ttl_ms is None):
        raise TypeError("give either ttl (seconds) or ttl_ms (milliseconds)")
    if ttl_ms is None:
        assert ttl is not None
        if ttl != ttl or ttl in (float("inf"), float("-inf")):
            raise InvalidTtl(f"{name!r}: the ttl must be a number of seconds, got {ttl}")
        ttl_ms = -int(-ttl * 1000 // 1)
    if ttl_ms <= 0:
        raise InvalidTtl(f"{name!r}: the ttl must be at least 1 ms, got {ttl_ms} ms")
    if ttl_ms > _MAX:
        raise TimeOverflow(f"{name!r}: a ttl of {ttl_ms} ms ends after the last representable time")
    return ttl_ms


def _ask(name: str, verb: int, *, now_ms: int, **question: Any) -> _library.Decision:
    code, decision = _library.decide(verb, now_ms=now_ms, **question)
    if code == 0:
        return decision
    if code == 1:
        raise InvalidTtl(f"{name!r}: the ttl must be at least 1 ms")
    if code == 2:
        raise TimeOverflow(f"{name!r}: the lease would end after the last representable time")
    if code == 3:
        raise TokenExhausted(f"{name!r}: no larger token exists: the newest one or the minimum is at its maximum")
    raise InvalidLeaseRow(f"the stored row of {name!r} is invalid and was left alone")


def _valid(name: str, found: tuple[Any, ...]) -> tuple[int, str | None, int, int | None]:
    """Returns rowid, owner, token and expiry of a loaded row, if they are of the right types."""
    rowid, owner, token, expiry, *types = found
    owner_type, token_type, expiry_type, name_type = (_as_text(kind) for kind in types)
    fits = token_type == "integer" and token >= 1 and name_type == "text"
    if not fits or (owner_type, expiry_type) not in (("text", "integer"), ("null", "null")):
        raise InvalidLeaseRow(f"the stored row of {name!r} is invalid and was left alone")
    return rowid, None if owner is None else _as_text(owner), token, expiry


def _as_text(value: Any) -> str:
    """Converts a value to text, also if the caller's connection returns bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_live(row: tuple[int, str | None, int, int | None] | None, now: int) -> bool:
    return row is not None and _ask("?", _INSPECT, row=row[1:], now_ms=now).outcome == 0


def _lease(name: str, row: Row | None) -> LeaseInfo:
    assert row is not None and row[0] is not None and row[2] is not None
    return LeaseInfo(name, row[0], row[1], row[2])


def _rejected(name: str, decision: _library.Decision, row: Row | None, now: int) -> Rejected:
    live = row is not None and _is_live((0, *row), now)
    return Rejected(_REASONS[decision.reason], _lease(name, row) if live else None, row[1] if row else None)
