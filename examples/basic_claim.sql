-- Only one of many may do the work: claim, work, renew, release.
--
--   sqlite3 app.sqlite3 < examples/basic_claim.sql
--
-- Run from the folder of the project, after `make build-ext`.

.load ./target/release/liblitelease_ext

SELECT 'table ready', litelease_bootstrap();

-- Returns a token, or NULL if another owner has the name.
SELECT 'claim by a', litelease_claim('nightly-report', 'a', 30000);
SELECT 'claim by b', ifnull(litelease_claim('nightly-report', 'b', 30000), 'busy: ' || litelease_owner('nightly-report'));

-- Who has what, right now.
SELECT name, owner, token, state FROM litelease_leases;

-- With the token, renew and release act on exactly this grant, whoever else uses the owner text.
SELECT 'renew by a', litelease_renew('nightly-report', 'a', 30000, NULL, litelease_token('nightly-report'));
SELECT 'release by a', litelease_release('nightly-report', 'a', NULL, litelease_token('nightly-report'));
SELECT 'owner now', ifnull(litelease_owner('nightly-report'), 'nobody');
