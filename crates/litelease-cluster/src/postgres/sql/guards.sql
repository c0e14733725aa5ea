-- Guarded tables: triggers that refuse a write without the newest token of a name, and the record that tells when they
-- are gone. `{s}` is the schema, quoted.
--
-- What a trigger calls runs as the owner of these functions, so writers need no right on the leases. Every such
-- function has a search_path of its own.

CREATE TABLE IF NOT EXISTS {s}.guarded (
  number bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
  relation regclass NOT NULL,
  table_name text NOT NULL,
  name text COLLATE "C" NOT NULL,
  column_name text,
  is_strict boolean NOT NULL,
  PRIMARY KEY (relation, name)
);

-- Returns a text in quotes, cut where it is too long for a message.
CREATE OR REPLACE FUNCTION {s}.short(text) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $litelease$
  SELECT to_json(left($1, 80))::text || CASE WHEN length($1) > 80 THEN '…' ELSE '' END
$litelease$;

-- Returns the token that this transaction has presented, or NULL.
CREATE OR REPLACE FUNCTION {s}.presented(name text) RETURNS bigint LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $litelease$
  SELECT (nullif(current_setting('litelease.presented', true), '')::jsonb ->> ('{schema}.' || $1))::bigint
$litelease$;

-- Presents a token for the writes of this transaction. Returns whether it is the newest one; NULL withdraws it.
CREATE OR REPLACE FUNCTION {s}.present(name text, token bigint) RETURNS boolean LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $litelease$
DECLARE
  before jsonb := coalesce(nullif(current_setting('litelease.presented', true), ''), '{}')::jsonb;
  open text;
BEGIN
  IF present.name IS NULL THEN
    RAISE null_value_not_allowed USING MESSAGE = 'the name must not be NULL', DETAIL = 'InvalidName';
  END IF;
  SELECT g.table_name INTO open FROM {s}.guarded g WHERE g.name = present.name AND NOT EXISTS (
    SELECT FROM pg_trigger t WHERE t.tgrelid = g.relation AND t.tgname = 'litelease_guard_' || g.number
    AND t.tgenabled = 'A') LIMIT 1;
  IF FOUND THEN
    RAISE object_not_in_prerequisite_state USING DETAIL = 'GuardMissing', MESSAGE = format('the table %s was '
      'guarded, and its triggers are gone or changed, so anybody can write to it: guard it again, or unguard it '
      'if that is meant', {s}.short(open));
  END IF;
  PERFORM set_config('litelease.presented', (CASE WHEN present.token IS NULL THEN before - ('{schema}.' || present.name)
    ELSE before || jsonb_build_object('{schema}.' || present.name, present.token) END)::text, true);
  RETURN CASE WHEN present.token IS NOT NULL THEN EXISTS (
    SELECT FROM {s}.resources r WHERE r.name = present.name AND r.token = present.token) END;
END $litelease$;

-- Takes back what was presented for a name.
CREATE OR REPLACE FUNCTION {s}.withdraw(name text) RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $litelease$
  SELECT {s}.present($1, NULL)
$litelease$;

-- Refuses a write.
CREATE OR REPLACE FUNCTION {s}.refuse(reason text, relation oid) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
BEGIN
  RAISE integrity_constraint_violation USING MESSAGE = 'stale fencing token: ' || reason,
    TABLE = (SELECT relname FROM pg_class WHERE oid = relation),
    SCHEMA = (SELECT nspname FROM pg_namespace WHERE oid = (SELECT relnamespace FROM pg_class WHERE oid = relation));
END $litelease$;

-- The guard by connection: a trigger with the name and whether it is strict. The row of the lease is locked so that a
-- grant waits until this transaction has ended, and a renewal does not: `UNIQUE (name, token)` makes the token a key.
CREATE OR REPLACE FUNCTION {s}.fence() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $litelease$
BEGIN
  PERFORM FROM {s}.resources r WHERE r.name = TG_ARGV[0] AND r.token =
      (nullif(current_setting('litelease.presented', true), '')::jsonb ->> ('{schema}.' || TG_ARGV[0]))::bigint
    AND (TG_ARGV[1] = 'f' OR r.lease_expires_at_ms > {clock}) FOR KEY SHARE;
  IF NOT FOUND THEN
    PERFORM {s}.refuse({s}.unmet(TG_ARGV[0], TG_ARGV[1]), TG_RELID);
  END IF;
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $litelease$;

-- Says which demand of a guard is not met.
CREATE OR REPLACE FUNCTION {s}.unmet(name text, strict text) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $litelease$
  SELECT format('not the newest one of %s was presented%s', {s}.short($1),
    CASE WHEN $2 = 't' THEN ', or its lease is over' ELSE '' END)
$litelease$;

-- Returns the text of the function for a guard by column. A write uses the presented token up: what stays is the token
-- negated, which passes no check.
CREATE OR REPLACE FUNCTION {s}.column_fence(column_name text) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $litelease$
  SELECT format($body$
BEGIN
  IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
    PERFORM {s}.refuse(format('a %%s has nowhere to present one on a table that is guarded by column; '
      'mark rows as deleted, or guard it by connection', TG_OP), TG_RELID);
  END IF;
  PERFORM FROM {s}.resources r WHERE r.name = TG_ARGV[0] AND r.token = NEW.%1$I
    AND (TG_ARGV[1] = 'f' OR r.lease_expires_at_ms > {clock}) FOR KEY SHARE;
  IF NOT FOUND THEN
    PERFORM {s}.refuse({s}.unmet(TG_ARGV[0], TG_ARGV[1]), TG_RELID);
  END IF;
  NEW.%1$I := - NEW.%1$I;
  RETURN NEW;
END $body$, $1)
$litelease$;

-- Returns a table and its partitions, of every level.
CREATE OR REPLACE FUNCTION {s}.parts(relation oid) RETURNS SETOF oid LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $litelease$
  SELECT $1 UNION SELECT relid::oid FROM pg_partition_tree($1)
$litelease$;

-- Returns the triggers that a guard must have on a table and each of its partitions: the end of their name, their kind
-- as pg_trigger has it, and when they fire. Only a table that stands alone is written to under its own name always, so
-- that a trigger for each statement sees every write.
CREATE OR REPLACE FUNCTION {s}.triggers(relation oid, by_column boolean)
RETURNS TABLE (suffix text, kind int, fires text) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $litelease$
  SELECT w.suffix, w.kind, w.fires FROM pg_class c, (VALUES
    (true, '', 62, 'INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT'),
    (false, '', 31, 'INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW'),
    (false, '_truncate', 34, 'TRUNCATE ON %s FOR EACH STATEMENT')) AS w (alone, suffix, kind, fires)
  WHERE c.oid = $1 AND w.alone = (c.relkind = 'r' AND NOT c.relispartition AND NOT $2)
$litelease$;

-- Tells why a table cannot be guarded, or NULL.
CREATE OR REPLACE FUNCTION {s}.why_not(relation oid) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $litelease$
  SELECT CASE
    WHEN n.nspname IN ('pg_catalog', 'information_schema', '{schema}')
      THEN 'it belongs to PostgreSQL or Litelease itself'
    WHEN c.relkind = 'v' THEN 'it is a view: guard the tables that it writes to'
    WHEN c.relkind NOT IN ('r', 'p') THEN 'it is no ordinary table'
    WHEN c.relpersistence = 't' THEN 'it is a temporary table, which nobody else can see'
    WHEN EXISTS (SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
        WHERE c.oid IN (i.inhrelid, i.inhparent) AND NOT child.relispartition)
      THEN 'it inherits from a table, or a table inherits from it: writes to one of them reach the other '
        'without its triggers'
    WHEN EXISTS (SELECT FROM {s}.parts(c.oid) AS part JOIN pg_class p ON p.oid = part WHERE p.relkind = 'f')
      THEN 'one of its partitions is a foreign table'
    END FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1
$litelease$;

-- Tells why a token cannot be presented in a column, or NULL.
CREATE OR REPLACE FUNCTION {s}.why_not_column(relation oid, column_name text) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $litelease$
  SELECT format('the column %s ', {s}.short($2)) || nullif(coalesce((SELECT CASE
    WHEN a.attgenerated <> '' THEN 'is generated, so nothing can be presented in it'
    WHEN EXISTS (SELECT FROM pg_attribute p LEFT JOIN pg_attrdef d ON d.adrelid = p.attrelid AND d.adnum = p.attnum
        WHERE p.attrelid IN (SELECT {s}.parts($1)) AND p.attname = $2 AND (p.attidentity <> '' OR regexp_replace(
          pg_get_expr(d.adbin, d.adrelid), '[()'']|::(integer|bigint)', '', 'g') !~ '^(0|-[0-9]+|NULL)$'))
      THEN 'has a default, which would present a token for writers that present none: drop the default'
    WHEN a.atttypid <> 'int8'::regtype THEN 'does not keep integers as they are: declare it bigint'
    WHEN EXISTS (SELECT FROM pg_depend d JOIN pg_index i ON i.indexrelid = d.objid AND i.indisunique
        WHERE d.classid = 'pg_class'::regclass AND d.refobjid = $1 AND d.refobjsubid = a.attnum)
      OR EXISTS (SELECT FROM pg_constraint o WHERE o.conrelid = $1 AND o.contype IN ('p', 'u', 'x')
        AND a.attnum = ANY (o.conkey))
      THEN 'is part of a unique index, and rows of one grant have the same token'
    WHEN EXISTS (SELECT FROM {s}.guarded g WHERE g.relation = $1::regclass AND g.column_name = $2)
      THEN 'already presents the token of another name'
    ELSE '' END
    FROM pg_attribute a WHERE a.attrelid = $1 AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped),
  'does not exist'), '')
$litelease$;

-- Checks whether the triggers of a guard are there as they must be, and switched on for every session.
-- It compares texts with what the catalog writes, so a session that has everything quoted must not
-- change those.
CREATE OR REPLACE FUNCTION {s}.is_intact(g {s}.guarded) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $litelease$
  SELECT EXISTS (SELECT FROM pg_class c WHERE c.oid = g.relation)
    AND {s}.why_not(g.relation) IS NULL
    AND NOT EXISTS (
      SELECT FROM {s}.parts(g.relation) AS part, {s}.triggers(g.relation, g.column_name IS NOT NULL) AS w
      WHERE NOT EXISTS (
        SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
        WHERE t.tgrelid = part AND t.tgname = 'litelease_guard_' || g.number || w.suffix
        AND t.tgtype = w.kind AND t.tgenabled = 'A' AND t.tgqual IS NULL AND t.tgattr = ''::int2vector
        AND t.tgargs = convert_to(g.name, getdatabaseencoding()) || decode('00', 'hex')
          || convert_to(g.is_strict::text::char::text, 'SQL_ASCII') || decode('00', 'hex')
        AND f.pronamespace = '{s}'::regnamespace AND f.prosecdef
        AND f.proname = 'fence' || coalesce('_' || CASE WHEN g.column_name IS NOT NULL THEN g.number END, '')
        AND (g.column_name IS NULL OR f.prosrc = {s}.column_fence(g.column_name))))
    AND (g.column_name IS NULL OR NOT EXISTS (SELECT FROM {s}.parts(g.relation) AS part WHERE NOT EXISTS (
      SELECT FROM pg_constraint o WHERE o.conrelid = part AND o.convalidated
      AND o.conname = 'litelease_guard_' || g.number
      AND pg_get_constraintdef(o.oid) = format('CHECK (((%1$I IS NULL) OR (%1$I <= 0)))', g.column_name))))
$litelease$;

-- Every guard, and whether it is intact or missing.
CREATE OR REPLACE VIEW {s}.guards AS
SELECT coalesce(pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname), g.table_name)
  AS table_name, g.name, g.column_name, g.is_strict AS strict,
  CASE WHEN {s}.is_intact(g) THEN 'intact' ELSE 'missing' END AS state
FROM {s}.guarded g LEFT JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) g.relation
LEFT JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace ORDER BY g.number;

-- Takes the triggers of a guard off, also those that are still on a partition that was detached.
CREATE OR REPLACE FUNCTION {s}.clear(g {s}.guarded) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
DECLARE
  old record;
  tables oid[] := ARRAY[g.relation::oid];
BEGIN
  FOR old IN SELECT t.tgrelid::regclass AS relation, t.tgname FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
    WHERE f.pronamespace = '{s}'::regnamespace AND t.tgparentid = 0 AND (f.proname = 'fence_' || g.number
      OR f.proname = 'fence' AND (t.tgname = 'litelease_guard_' || g.number || '_truncate'
        OR t.tgname = 'litelease_guard_' || g.number AND t.tgrelid IN (SELECT {s}.parts(g.relation))))
  LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', old.tgname, old.relation);
    tables := tables || old.relation::oid;
  END LOOP;
  FOR old IN SELECT o.conrelid::regclass AS relation, o.conname FROM pg_constraint o
    WHERE o.conrelid = ANY (tables) AND o.conname = 'litelease_guard_' || g.number AND o.coninhcount = 0
      AND g.column_name IS NOT NULL
  LOOP
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', old.relation, old.conname);
  END LOOP;
  IF to_regprocedure(format('{s}.%I()', 'fence_' || g.number)) IS NOT NULL THEN
    EXECUTE format('DROP FUNCTION {s}.%I()', 'fence_' || g.number);
  END IF;
END $litelease$;

-- Guards a table.
CREATE OR REPLACE FUNCTION {s}.put_on(target regclass, spelled text, name text, column_name text, strict boolean)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $litelease$
#variable_conflict use_column
DECLARE
  known {s}.guarded;
  reason text;
  qualified text;
  part regclass;
  wanted record;
  has_positive boolean;
BEGIN
  PERFORM {s}.check_ask(put_on.name, '', 1);
  LOCK TABLE {s}.guarded IN SHARE ROW EXCLUSIVE MODE;
  reason := CASE WHEN target IS NULL THEN 'there is no such table: write it as in SQL, with its schema'
    ELSE {s}.why_not(target) END;
  IF reason IS NULL THEN
    SELECT format('%I.%I', n.nspname, c.relname) INTO qualified
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = target;
    -- A table that was dropped and made anew has lost its guards, and gets them back.
    UPDATE {s}.guarded g SET relation = target WHERE g.table_name = qualified AND g.name = put_on.name
      AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = g.relation);
    SELECT * INTO known FROM {s}.guarded g WHERE g.relation = target AND g.name = put_on.name;
    IF known.number IS NOT NULL AND (known.column_name IS DISTINCT FROM put_on.column_name
        OR known.is_strict <> put_on.strict)
      -- A column that was renamed or dropped presents nothing any more.
      AND (known.column_name IS NULL OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = target
        AND a.attname = known.column_name AND NOT a.attisdropped)) THEN
      reason := 'it is already guarded by this name, in another way: unguard it first';
    ELSIF {s}.is_intact(known) THEN
      RETURN true;
    ELSIF put_on.column_name IS NOT NULL THEN
      DELETE FROM {s}.guarded g WHERE g.number = known.number;
      reason := {s}.why_not_column(target, put_on.column_name);
      IF reason IS NULL THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE %I > 0)', target, put_on.column_name) INTO has_positive;
        reason := CASE WHEN has_positive THEN format('the column %1$I has positive numbers from before, which would '
          'pass as presented tokens: run UPDATE %2$s SET %1$I = -%1$I WHERE %1$I > 0 first',
          put_on.column_name, target) END;
      END IF;
    END IF;
  END IF;
  IF reason IS NOT NULL THEN
    RAISE invalid_parameter_value USING DETAIL = 'CannotGuard', TABLE = coalesce(spelled, ''),
      MESSAGE = format('the table %s cannot be guarded: %s', {s}.short(spelled), reason);
  END IF;
  IF known.number IS NOT NULL THEN
    PERFORM {s}.clear(known);
    DELETE FROM {s}.guarded g WHERE g.number = known.number;
  END IF;
  LOOP
    INSERT INTO {s}.guarded (relation, table_name, name, column_name, is_strict)
      VALUES (target, qualified, put_on.name, put_on.column_name, put_on.strict) RETURNING * INTO known;
    -- Leases in another schema count their guards for themselves, and may guard the same table.
    EXIT WHEN NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid IN (SELECT {s}.parts(target))
      AND t.tgname IN ('litelease_guard_' || known.number, 'litelease_guard_' || known.number || '_truncate'));
    DELETE FROM {s}.guarded g WHERE g.number = known.number;
  END LOOP;
  IF put_on.column_name IS NOT NULL THEN
    EXECUTE format('CREATE FUNCTION {s}.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
      'SET search_path = pg_catalog, pg_temp AS %L', 'fence_' || known.number, {s}.column_fence(put_on.column_name));
    EXECUTE format('ALTER TABLE %1$s ADD CONSTRAINT %2$I CHECK (%3$I IS NULL OR %3$I <= 0)', target,
      'litelease_guard_' || known.number, put_on.column_name);
  END IF;
  FOR wanted IN SELECT * FROM {s}.triggers(target, put_on.column_name IS NOT NULL) LOOP
    FOR part IN SELECT p FROM {s}.parts(target) AS p ORDER BY p <> target LOOP
      -- A trigger for each row comes with the table to its partitions; one for TRUNCATE does not.
      IF part = target OR wanted.suffix <> '' THEN
        EXECUTE format('CREATE TRIGGER %I BEFORE ' || wanted.fires || ' EXECUTE FUNCTION {s}.%I(%L, %L)',
          'litelease_guard_' || known.number || wanted.suffix, part,
          CASE WHEN put_on.column_name IS NULL THEN 'fence' ELSE 'fence_' || known.number END,
          put_on.name, put_on.strict::text::char);
      END IF;
      EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', part,
        'litelease_guard_' || known.number || wanted.suffix);
    END LOOP;
  END LOOP;
  RETURN true;
END $litelease$;

-- Takes the guards off a table, which may be gone: those by a name, or all. Returns how many there were.
CREATE OR REPLACE FUNCTION {s}.take_off(target regclass, spelled text, name text) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $litelease$
DECLARE
  known {s}.guarded;
  words text[] := parse_ident(spelled);
  taken bigint := 0;
BEGIN
  LOCK TABLE {s}.guarded IN SHARE ROW EXCLUSIVE MODE;
  FOR known IN SELECT g.* FROM {s}.guarded g WHERE g.name = coalesce(take_off.name, g.name) AND (g.relation = target
    OR (parse_ident(g.table_name) = words OR (parse_ident(g.table_name))[2:] = words)
      AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = g.relation))
  LOOP
    PERFORM {s}.clear(known);
    DELETE FROM {s}.guarded g WHERE g.number = known.number;
    taken := taken + 1;
  END LOOP;
  RETURN taken;
END $litelease$;

-- Guards a table: from now on a write to it must present the newest token of the name, in a column or for its
-- transaction. The caller's search_path finds the table.
CREATE OR REPLACE FUNCTION {s}.guard("table" text, name text, "column" text DEFAULT NULL, strict boolean DEFAULT false)
RETURNS boolean LANGUAGE sql AS $litelease$
  SELECT {s}.put_on(pg_catalog.to_regclass($1), $1, $2, $3, $4)
$litelease$;

-- Removes guards. Returns how many.
CREATE OR REPLACE FUNCTION {s}.unguard("table" text, name text DEFAULT NULL)
RETURNS bigint LANGUAGE sql AS $litelease$
  SELECT {s}.take_off(pg_catalog.to_regclass($1), $1, $2)
$litelease$;
