-- The claim and the work it allows, committed together or not at all.
--
--   sqlite3 app.sqlite3 < examples/transactional_claim.sql
--
-- Run from the folder of the project, after `make build-ext`.

.load ./target/release/liblitelease_ext
.bail on

SELECT 'table ready', litelease_bootstrap();
CREATE TABLE IF NOT EXISTS batches (id INTEGER PRIMARY KEY, token INTEGER NOT NULL);

-- BEGIN IMMEDIATE, so that the busy timeout applies and the transaction can write to its end.
BEGIN IMMEDIATE;
-- NOT NULL stops the batch if another owner has the lease.
INSERT INTO batches (token) VALUES (litelease_claim('import', 'importer-1', 30000));
COMMIT;
SELECT 'batch', max(id), 'under token', litelease_token('import') FROM batches;

-- A claim that is rolled back was never a grant.
BEGIN IMMEDIATE;
SELECT 'released in a transaction', litelease_release('import', 'importer-1');
ROLLBACK;
SELECT 'owner after rollback', litelease_owner('import');
SELECT 'release', litelease_release('import', 'importer-1');
