-- The verbs as functions, for the caller's transaction in any language. They are the rule of `litelease-core` once
-- more; a test compares both on every small state. `{s}` is the schema, quoted; `{clock}` is the clock in milliseconds.
--
-- Locks are taken in one order: the floor, then the row.

-- Checks what was asked before anything is read.
CREATE OR REPLACE FUNCTION {s}.check_ask(name text, owner text, ttl_ms bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
BEGIN
  IF name IS NULL OR owner IS NULL OR ttl_ms IS NULL THEN
    RAISE null_value_not_allowed USING MESSAGE = 'a name, an owner and a ttl must not be NULL',
      DETAIL = 'InvalidName';
  ELSIF octet_length(name) > 1024 OR octet_length(owner) > 1024 THEN
    RAISE invalid_parameter_value USING MESSAGE = format('the %s has %s bytes: at most 1024 are allowed',
        CASE WHEN octet_length(name) > 1024 THEN 'name' ELSE 'owner' END,
        greatest(octet_length(name), octet_length(owner))),
      DETAIL = 'InvalidName';
  ELSIF ttl_ms < 1 THEN
    RAISE invalid_parameter_value USING MESSAGE = format('the ttl must be at least 1 ms, got %s ms', ttl_ms),
      DETAIL = 'InvalidTtl';
  END IF;
END $litelease$;

-- Refuses the names that belong to the service: whoever claimed `serve` would stop it.
CREATE OR REPLACE FUNCTION {s}.check_name(name text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
BEGIN
  IF name = 'serve' OR starts_with(name, 'serve/') THEN
    RAISE invalid_parameter_value USING DETAIL = 'InvalidName',
      MESSAGE = 'the name belongs to the service: only its servers hold it (break works)';
  END IF;
END $litelease$;

-- Returns the end of a lease.
CREATE OR REPLACE FUNCTION {s}.until_ms(ttl_ms bigint, now_ms bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
BEGIN
  IF ttl_ms::numeric + now_ms > 9223372036854775807 THEN
    RAISE numeric_value_out_of_range USING DETAIL = 'TimeOverflow',
      MESSAGE = format('a ttl of %s ms at %s ms ends after the last representable time', ttl_ms, now_ms);
  END IF;
  RETURN ttl_ms + now_ms;
END $litelease$;

-- Begins an epoch if the server is not the one that the floor was recorded in, as the verbs of an engine do before they
-- decide anything: every lease gets its whole ttl again, and the floor goes up. Also raises a synchronous_commit that
-- could lose the grant in a crash.
CREATE OR REPLACE FUNCTION {s}.begin_verb(now_ms bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
DECLARE
  ours bigint := {s}.incarnation();
  recorded {s}.meta;
BEGIN
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  SELECT * INTO STRICT recorded FROM {s}.meta m;
  IF recorded.format > {format} THEN
    RAISE feature_not_supported USING MESSAGE = format('a newer Litelease has written here (format %s, these '
      'functions know {format}): update this program', recorded.format), DETAIL = 'NewerFormat';
  END IF;
  IF recorded.boot IN (0, ours) THEN RETURN; END IF;
  SELECT * INTO STRICT recorded FROM {s}.meta m FOR UPDATE;
  IF recorded.boot IN (0, ours) THEN RETURN; END IF;
  UPDATE {s}.resources r SET updated_at_ms = coalesce(now_ms, {clock}), lease_expires_at_ms =
    least(9223372036854775807, coalesce(now_ms, {clock})::numeric + r.lease_expires_at_ms - r.updated_at_ms)
    WHERE r.owner IS NOT NULL;
  -- Where nothing is granted any more, nothing can have been lost.
  IF recorded.floor < 9223372036854775807 THEN
    IF recorded.floor >> 32 >= 2147483647 THEN PERFORM {s}.next_token(9223372036854775807, 0); END IF;
    recorded.floor := ((recorded.floor >> 32) + 1) << 32;
  END IF;
  UPDATE {s}.meta m SET floor = recorded.floor, boot = ours;
END $litelease$;

-- Holds the floor until the transaction ends: `raise` and `purge` wait, so no token comes back. Returns the floor. If the
-- token after `newest` is in another epoch, the floor will be changed, and is held alone from the start: two transactions
-- that hold it together would wait for each other then.
CREATE OR REPLACE FUNCTION {s}.hold_floor(newest bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
DECLARE
  floor bigint;
BEGIN
  SELECT m.floor INTO STRICT floor FROM {s}.meta m;
  IF greatest(newest, floor) >> 32 > floor >> 32 OR greatest(newest, floor) & 4294967295 = 4294967295 THEN
    SELECT m.floor INTO STRICT floor FROM {s}.meta m FOR NO KEY UPDATE;
  ELSE
    SELECT m.floor INTO STRICT floor FROM {s}.meta m FOR SHARE;
  END IF;
  RETURN floor;
END $litelease$;

-- Returns the token of the next grant.
CREATE OR REPLACE FUNCTION {s}.next_token(newest bigint, floor bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
BEGIN
  IF greatest(newest, floor) = 9223372036854775807 THEN
    RAISE numeric_value_out_of_range USING DETAIL = 'TokenExhausted',
      MESSAGE = 'no larger token exists: the newest one or the minimum is at its maximum';
  END IF;
  RETURN greatest(newest, floor) + 1;
END $litelease$;

-- Stores a row in place of `seen`, whose name is NULL if the name had no row. Returns false and stores nothing if the row
-- has changed since: in READ COMMITTED each statement sees what others have committed meanwhile. The floor's epoch is
-- never below that of a token.
CREATE OR REPLACE FUNCTION {s}.put(seen {s}.resources, name text, owner text, token bigint, until_ms bigint,
  now_ms bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $litelease$
#variable_conflict use_column
DECLARE
  new_attempt bigint := greatest(1, hashtextextended(gen_random_uuid()::text, 0) & 9223372036854775807);
BEGIN
  IF (put.seen).name IS NULL THEN
    -- A row that is not committed yet cannot be passed over, so the service passes over the lock of its name instead.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('{s}.' || put.name, 0));
    INSERT INTO {s}.resources (name, owner, token, lease_expires_at_ms, created_at_ms, updated_at_ms, attempt,
      ended)
    VALUES (put.name, put.owner, put.token, put.until_ms, put.now_ms, put.now_ms, new_attempt, 0)
    ON CONFLICT DO NOTHING;
  ELSE
    UPDATE {s}.resources r SET owner = put.owner, token = put.token, lease_expires_at_ms = put.until_ms,
      created_at_ms = CASE WHEN put.owner IS NOT NULL AND put.token <> r.token THEN put.now_ms
        ELSE r.created_at_ms END, updated_at_ms = put.now_ms, attempt = new_attempt, ended = CASE WHEN put.owner IS NULL
        AND r.owner IS NOT NULL OR put.token <> r.token AND r.lease_expires_at_ms > put.now_ms THEN new_attempt
        ELSE r.ended END
      WHERE r.name = put.name AND r.token = (put.seen).token AND r.attempt = (put.seen).attempt;
  END IF;
  IF NOT FOUND THEN RETURN false; END IF;
  UPDATE {s}.meta m SET floor = (put.token >> 32) << 32 WHERE put.token >> 32 > m.floor >> 32;
  RETURN true;
END $litelease$;

-- Returns the token of a new lease, or NULL if the name has a live owner.
CREATE OR REPLACE FUNCTION {s}.claim(name text, owner text, ttl_ms bigint, now_ms bigint DEFAULT NULL,
  min_token bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
DECLARE
  seen {s}.resources;
  at_ms bigint;
  new_token bigint;
  floor bigint;
BEGIN
  PERFORM {s}.check_name(claim.name);
  PERFORM {s}.check_ask(claim.name, claim.owner, ttl_ms);
  PERFORM {s}.begin_verb(now_ms);
  LOOP
    -- A busy name is told without a lock.
    SELECT * INTO seen FROM {s}.resources r WHERE r.name = claim.name;
    at_ms := coalesce(now_ms, {clock});
    PERFORM {s}.until_ms(ttl_ms, at_ms);
    IF seen.lease_expires_at_ms > at_ms THEN RETURN NULL; END IF;
    floor := {s}.hold_floor(greatest(seen.token, min_token));
    SELECT * INTO seen FROM {s}.resources r WHERE r.name = claim.name FOR UPDATE;
    -- Waiting for the locks takes time, too.
    at_ms := coalesce(now_ms, {clock});
    CONTINUE WHEN seen.lease_expires_at_ms > at_ms;
    new_token := {s}.next_token(seen.token, greatest(floor, min_token));
    IF {s}.put(seen, claim.name, claim.owner, new_token, {s}.until_ms(ttl_ms, at_ms), at_ms) THEN
      RETURN new_token;
    END IF;
  END LOOP;
END $litelease$;

-- Returns the row of a live lease that is exactly this one, locked until the transaction ends: for its owner, or for
-- any owner if that is NULL; and with this token, or with any.
CREATE OR REPLACE FUNCTION {s}.live(name text, owner text, token bigint, now_ms bigint, is_grant boolean)
RETURNS {s}.resources LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $litelease$
#variable_conflict use_column
DECLARE
  seen {s}.resources;
BEGIN
  PERFORM {s}.begin_verb(live.now_ms);
  FOR turn IN 1 .. 2 LOOP
    IF turn = 1 THEN
      -- What is rejected anyway does not wait.
      SELECT * INTO seen FROM {s}.resources r WHERE r.name = live.name;
    ELSIF is_grant THEN
      PERFORM {s}.hold_floor(seen.token);
      SELECT * INTO seen FROM {s}.resources r WHERE r.name = live.name FOR UPDATE;
    ELSE
      SELECT * INTO seen FROM {s}.resources r WHERE r.name = live.name FOR NO KEY UPDATE;
    END IF;
    IF seen.lease_expires_at_ms > coalesce(live.now_ms, {clock})
      AND seen.owner = coalesce(live.owner, seen.owner) AND seen.token = coalesce(live.token, seen.token)
    THEN
      CONTINUE;
    END IF;
    RETURN NULL;
  END LOOP;
  RETURN seen;
END $litelease$;

-- Returns the end that a renewal up to `until_ms` may have by what is stored beside the row, or NULL if it is refused.
CREATE OR REPLACE FUNCTION {s}.admitted(name text, token bigint, until_ms bigint, now_ms bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $litelease$
DECLARE
  payload json;
BEGIN
  SELECT b.value::json INTO payload FROM {s}.beside b
    WHERE b.name = admitted.name AND b.kind = 'p' AND b.token = admitted.token;
  IF (payload ->> 'not_after')::bigint <= now_ms
    OR (payload ->> 'progress_at')::numeric + (payload ->> 'within')::numeric <= now_ms
    OR (payload ->> 'until')::bigint <= now_ms AND (payload ->> 'repeated_at')::numeric + 10000 > now_ms
  THEN
    RETURN NULL;
  END IF;
  -- What is NULL is passed over.
  RETURN least(until_ms, (payload ->> 'not_after')::bigint);
END $litelease$;

-- Prolongs a live lease and returns its token, or NULL. Never shortens it, and never revives one.
CREATE OR REPLACE FUNCTION {s}.renew(name text, owner text, ttl_ms bigint, now_ms bigint DEFAULT NULL,
  token bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
DECLARE
  seen {s}.resources;
  at_ms bigint;
  new_until_ms bigint;
BEGIN
  PERFORM {s}.check_name(renew.name);
  PERFORM {s}.check_ask(renew.name, renew.owner, ttl_ms);
  PERFORM {s}.until_ms(ttl_ms, coalesce(now_ms, {clock}));
  seen := {s}.live(renew.name, renew.owner, renew.token, now_ms, false);
  IF seen.name IS NULL THEN RETURN NULL; END IF;
  at_ms := coalesce(now_ms, {clock});
  new_until_ms := {s}.admitted(seen.name, seen.token, {s}.until_ms(ttl_ms, at_ms), at_ms);
  IF new_until_ms IS NULL THEN RETURN NULL; END IF;
  PERFORM {s}.put(seen, seen.name, seen.owner, seen.token, greatest(seen.lease_expires_at_ms, new_until_ms), at_ms);
  RETURN seen.token;
END $litelease$;

-- Claims a name, or prolongs the live lease that the owner has on it. Returns its token, or NULL.
CREATE OR REPLACE FUNCTION {s}.ensure(name text, owner text, ttl_ms bigint, now_ms bigint DEFAULT NULL)
RETURNS bigint LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $litelease$
  -- The last one is for a claim of the same owner that was committed meanwhile.
  SELECT coalesce({s}.renew($1, $2, $3, $4), {s}.claim($1, $2, $3, $4), {s}.renew($1, $2, $3, $4))
$litelease$;

-- Ends a live lease early, and wakes those who wait for it after COMMIT. Returns whether there was one.
CREATE OR REPLACE FUNCTION {s}.release(name text, owner text, now_ms bigint DEFAULT NULL, token bigint DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $litelease$
DECLARE
  seen {s}.resources;
BEGIN
  PERFORM {s}.check_name(release.name);
  PERFORM {s}.check_ask(release.name, release.owner, 1);
  seen := {s}.live(release.name, release.owner, release.token, now_ms, false);
  IF seen.name IS NULL THEN RETURN false; END IF;
  PERFORM {s}.put(seen, seen.name, NULL, seen.token, NULL, coalesce(now_ms, {clock})),
    pg_notify('{schema}', seen.name);
  RETURN true;
END $litelease$;

-- Hands a live lease to a new owner. Returns its new token, or NULL.
CREATE OR REPLACE FUNCTION {s}.transfer(name text, owner text, new_owner text, ttl_ms bigint,
  now_ms bigint DEFAULT NULL, token bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
DECLARE
  seen {s}.resources;
  new_token bigint;
  at_ms bigint;
BEGIN
  PERFORM {s}.check_name(transfer.name);
  PERFORM {s}.check_ask(transfer.name, transfer.owner, ttl_ms), {s}.check_ask('', new_owner, 1);
  PERFORM {s}.until_ms(ttl_ms, coalesce(now_ms, {clock}));
  seen := {s}.live(transfer.name, transfer.owner, transfer.token, now_ms, true);
  IF seen.name IS NULL THEN RETURN NULL; END IF;
  at_ms := coalesce(now_ms, {clock});
  new_token := {s}.next_token(seen.token, {s}.hold_floor(seen.token));
  PERFORM {s}.put(seen, seen.name, new_owner, new_token, {s}.until_ms(ttl_ms, at_ms), at_ms),
    pg_notify('{schema}', seen.name);
  RETURN new_token;
END $litelease$;

-- Ends any holder's live lease, for operators, and raises the token. Returns the token that it ended, or NULL.
CREATE OR REPLACE FUNCTION {s}.break(name text, now_ms bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
DECLARE
  seen {s}.resources;
  floor bigint;
  new_token bigint;
BEGIN
  PERFORM {s}.check_ask(break.name, '', 1);
  seen := {s}.live(break.name, NULL, NULL, now_ms, true);
  IF seen.name IS NULL THEN RETURN NULL; END IF;
  floor := {s}.hold_floor(seen.token);
  -- Where nothing is granted any more, the largest token is still there, and is never granted.
  new_token := CASE WHEN floor = 9223372036854775807 AND seen.token < floor THEN floor
    ELSE {s}.next_token(seen.token, floor) END;
  PERFORM {s}.put(seen, seen.name, NULL, new_token, NULL, coalesce(now_ms, {clock})),
    pg_notify('{schema}', seen.name);
  RETURN seen.token;
END $litelease$;

-- Returns the owner of the name, if it is leased.
CREATE OR REPLACE FUNCTION {s}.owner(name text, now_ms bigint DEFAULT NULL) RETURNS text LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $litelease$
  SELECT {s}.begin_verb($2);
  SELECT r.owner FROM {s}.resources r WHERE r.name = $1 AND r.lease_expires_at_ms > coalesce($2, {clock})
$litelease$;

-- Returns the newest token of the name, live or not.
CREATE OR REPLACE FUNCTION {s}.token(name text) RETURNS bigint LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $litelease$
  SELECT r.token FROM {s}.resources r WHERE r.name = $1
$litelease$;
